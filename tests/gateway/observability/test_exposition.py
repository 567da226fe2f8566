"""Pages of metrics become one, and each series names its process."""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from gateway.observability.exposition import merge_expositions

TRICKY = 'a "b" {c} \\ d\n= 1'


def page(count: int) -> bytes:
    registry = CollectorRegistry()
    requests = Counter("requests", "Requests.", ["model"], registry=registry)
    requests.labels("m").inc(count)
    requests.labels(TRICKY).inc(2 * count)
    Gauge("plain", "One without labels.", registry=registry).set(count)
    Histogram("seconds", "Time.", ["model"], registry=registry, buckets=(1.0,)).labels("m").observe(0.5)
    if count == 2:
        Gauge("only_here", "One process has it.", registry=registry).set(1)
    return generate_latest(registry)


def samples(text: bytes) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    found = {}
    for family in text_string_to_metric_families(text.decode()):
        for sample in family.samples:
            key = sample.name, frozenset(sample.labels.items())
            assert key not in found
            found[key] = sample.value
    return found


def test_every_sample_of_every_process_is_there_once_under_its_name() -> None:
    whole = samples(merge_expositions({"h-0": page(1), "h-1": page(2)}, ["h-2"]))
    expected = {
        (name, labels | {("process", process)}): value
        for process, count in (("h-0", 1), ("h-1", 2))
        for (name, labels), value in samples(page(count)).items()
    }
    up = {
        ("trunkline_gateway_process_up", frozenset({("process", f"h-{index}")})): float(index < 2)
        for index in range(3)
    }
    assert whole == expected | up
    assert ("requests_total", frozenset({("model", TRICKY), ("process", "h-1")})) in whole


def test_each_family_is_described_once_before_its_samples() -> None:
    lines = merge_expositions({"h-0": page(1), "h-1": page(2)}, []).decode().splitlines()
    for kind in ("HELP", "TYPE"):
        named = [line.split()[2] for line in lines if line.startswith(f"# {kind} ")]
        assert len(named) == len(set(named))
    begins = lines.index("# TYPE seconds histogram")
    ends = next(n for n, line in enumerate(lines) if n > begins and line.startswith("#"))
    assert (
        sum("h-0" in line for line in lines[begins:ends]) == sum("h-1" in x for x in lines[begins:ends]) > 0
    )
