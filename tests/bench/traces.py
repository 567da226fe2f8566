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
    loop_more_us: float
    """Of ``more_us`` what the thread of the event loop takes; the rest is the thread that makes and sends
    spans."""
    requests: int

    def __str__(self) -> str:
        return (
            f"traces {self.traced:<6} {self.requests_per_s:8,.0f}/s  gateway {self.cpu_us:6.0f} µs each, "
            f"{self.more_us:+6.1f} µs ({self.loop_more_us:+.1f} of the event loop's thread), "
            f"x{self.ratio:.3f}; {self.requests:,} answered"
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
    pace = ("-c", str(CONNECTIONS), "-w", f"{min(0.3, seconds):g}", "-d", f"{seconds:g}")
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
                pid = sites[name].gateway.child.pid
                before = _threads_s(pid)
                found = sites[name].ask("unary", *pace)
                seen[name].append({**found, "loop": _share(pid, before, _threads_s(pid))})
        pids = {name: site.gateway.child.pid for name, site in sites.items()}
    return TracedCosts(_costs(seen, pids), len(sink.spans))


def _threads_s(pid: int) -> dict[int, float]:
    """Seconds of CPU that each thread of the process has had (proc(5))."""
    found = Path(f"/proc/{pid}/task").glob("*/schedstat")
    return {int(each.parent.name): int(each.read_text().split()[0]) / 1e9 for each in found}


def _share(pid: int, before: dict[int, float], after: dict[int, float]) -> float:
    """That of the event loop's thread, which is the process's first, in the CPU of all threads meanwhile."""
    used_s = {thread: seconds - before.get(thread, 0.0) for thread, seconds in after.items()}
    return used_s[pid] / sum(used_s.values())


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
    loop_us = {
        name: [each["loop"] * used_us for each, used_us in zip(rounds, cpu_us[name], strict=True)]
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
            statistics.median(
                with_us - off_us for with_us, off_us in zip(loop_us[name], loop_us["off"], strict=True)
            ),
            sum(int(each["right"]) for each in rounds),
        )
        for name, rounds in seen.items()
    ]
