"""What traces cost a gateway: its CPU for a short request without them, at 1 % and at all requests.

A gateway for each of these, with an agent and a compiled engine of its own, and one collector, which is not
counted.
They take turns, so that what else the machine does meets all of them.
"""

import contextlib
import json
import statistics
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tests.bench import crowd
from tests.support.otlp_sink import OtlpSink, otlp_sink
from tests.support.processes import House

CONNECTIONS = 16
_SLOTS = 256
RATIOS = {"off": None, "1 %": 0.01, "100 %": 1.0}


@dataclass(frozen=True, slots=True)
class TracedCost:
    """One gateway: medians of its rounds."""

    traced: str
    requests_per_s: float
    cpu_us: float
    """Of the gateway, for a request."""
    more_us: float
    ratio: float
    """``more_us`` and ``ratio``: medians of the rounds, each held against the same round without."""
    requests: int

    def __str__(self) -> str:
        return (
            f"traces {self.traced:<6} {self.requests_per_s:8,.0f}/s  gateway {self.cpu_us:6.0f} µs each, "
            f"{self.more_us:+6.1f} µs, x{self.ratio:.3f}; {self.requests:,} answered"
        )


@dataclass(frozen=True, slots=True)
class TracedCosts:
    """Of one run."""

    costs: list[TracedCost]
    spans: int
    """That the collector got."""

    def __str__(self) -> str:
        return "\n".join([*map(str, self.costs), f"the collector got {self.spans:,} spans"])

    def to_json(self) -> str:
        return json.dumps({"costs": [asdict(each) for each in self.costs], "spans": self.spans}, indent=1)


def run(directory: Path, rounds: int, seconds: float) -> TracedCosts:
    """So many rounds, in each of them every gateway for so long. The caller asked :func:`tools.missing`."""
    pace = ("-c", str(CONNECTIONS), "-w", "0.3", "-d", f"{seconds:g}")
    seen: dict[str, list[dict[str, Any]]] = {name: [] for name in RATIOS}
    with contextlib.ExitStack() as stack:
        sink = stack.enter_context(otlp_sink())
        sites = {}
        for number, (name, ratio) in enumerate(RATIOS.items()):
            house = stack.enter_context(House(directory / str(number)))
            gateway = crowd.start_gateway(house, _environment(sink, ratio))
            key = gateway.key("bench")
            sites[name] = crowd.start_agents(house, gateway, 1, _SLOTS, key)
        for number in range(rounds):
            names = list(RATIOS)
            for name in names[number % len(names) :] + names[: number % len(names)]:
                seen[name].append(sites[name].ask("unary", *pace))
        pids = {name: site.gateway.child.pid for name, site in sites.items()}
    return TracedCosts(_costs(seen, pids), len(sink.spans))


def _environment(sink: OtlpSink, ratio: float | None) -> dict[str, str]:
    if ratio is None:
        return {}
    prefix = "TRUNKLINE_GATEWAY_OTEL__"
    return {f"{prefix}ENDPOINT": sink.url, f"{prefix}SAMPLE_RATIO": f"{ratio:g}"}


def _costs(seen: dict[str, list[dict[str, Any]]], pids: dict[str, int]) -> list[TracedCost]:
    cpu_us = {
        name: [crowd.cpu_us(each, [pids[name]], each["right"]) for each in rounds]
        for name, rounds in seen.items()
    }
    without = cpu_us["off"]
    return [
        TracedCost(
            name,
            statistics.median(each["right"] / each["seconds"] for each in rounds),
            statistics.median(cpu_us[name]),
            statistics.median(
                with_us - off_us for with_us, off_us in zip(cpu_us[name], without, strict=True)
            ),
            statistics.median(
                with_us / off_us for with_us, off_us in zip(cpu_us[name], without, strict=True)
            ),
            sum(int(each["right"]) for each in rounds),
        )
        for name, rounds in seen.items()
    ]
