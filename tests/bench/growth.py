"""Whether gateway and agents grow under a steady load: ``trunkline bench`` in an open loop, streamed and not.

Resident memory and descriptors are looked at every few seconds; growth is what the median of the last fifth
has above that of the second, the first being warm-up.
"""

import json
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from tests.bench import crowd
from tests.bench.figures import cpu_s
from tests.bench.peers.workloads import MODEL
from tests.chaos.sampling import Drift, Sample, drift_of
from tests.support.leaks import descriptor_count, rss_bytes
from tests.support.processes import House

MOST_GROWTH = 0.05
MOST_DESCRIPTORS = 20
_AGENTS = 4
_SLOTS = 256
_TOKENS = 100
_INTERVAL_S = 0.05
_LOOKS = 300
_SHORTEST_LOOK_S = 0.5
_LATE_S = 60.0


@dataclass(frozen=True, slots=True)
class Growth:
    """Over ``seconds``."""

    seconds: float
    requests: int
    failed: int
    cores: float
    """Of gateway and agents together, on average."""
    drifts: list[Drift]

    @property
    def met(self) -> bool:
        steady = all(each.rss <= MOST_GROWTH and each.descriptors <= MOST_DESCRIPTORS for each in self.drifts)
        return bool(self.drifts) and steady and not self.failed

    def __str__(self) -> str:
        lines = [
            f"{self.requests:,} requests in {self.seconds:,.0f} s, {self.failed} failed, "
            f"gateway and agents {self.cores:.2f} cores",
            *(str(drift) for drift in self.drifts),
            f"goal: none grows by more than {MOST_GROWTH:.0%}: {'met' if self.met else 'MISSED'}",
        ]
        return "\n".join(lines)

    def to_json(self) -> str:
        return json.dumps(asdict(self) | {"met": self.met}, indent=1)


def run(house: House, seconds: float, *, streams_per_s: float = 15.0, whole_per_s: float = 30.0) -> Growth:
    """A load of so many requests a second, for so long. Raises AssertionError when a process ended early."""
    gateway = crowd.start_gateway(house)
    site = crowd.start_agents(house, gateway, _AGENTS, _SLOTS, gateway.key("bench"))
    site.engine.direct(interval_us=int(_INTERVAL_S * 1e6))
    pids = {"gateway": gateway.child.pid} | {f"agent {n}": pid for n, pid in enumerate(site.agents_pids, 1)}
    reports = [house.directory / "streamed.json", house.directory / "whole.json"]
    loads = [
        _load(site, seconds, streams_per_s, "--stream", reports[0]),
        _load(site, seconds, whole_per_s, "--no-stream", reports[1]),
    ]
    samples: dict[str, list[Sample]] = {name: [] for name in pids}
    began_s, used_s = time.monotonic(), sum(map(cpu_s, pids.values()))
    try:
        while any(load.poll() is None for load in loads):
            house.children.check()
            at_s = time.monotonic() - began_s
            assert at_s < seconds + _LATE_S, "the load does not end"
            for name, pid in pids.items():
                samples[name].append(Sample(at_s, rss_bytes(pid), descriptor_count(pid)))
            time.sleep(max(_SHORTEST_LOOK_S, seconds / _LOOKS))
    finally:
        for load in loads:
            load.kill()
            load.wait()
    took_s = time.monotonic() - began_s
    told = [json.loads(report.read_text()) for report in reports]
    drifts = [drift for name in pids if (drift := drift_of(name, samples[name])) is not None]
    return Growth(
        seconds=took_s,
        requests=sum(each["requests"]["right"] for each in told),
        failed=sum(each["requests"]["failed"] for each in told),
        cores=(sum(map(cpu_s, pids.values())) - used_s) / took_s,
        drifts=drifts,
    )


def _load(
    site: crowd.Crowd, seconds: float, per_s: float, kind: str, report: Path
) -> subprocess.Popen[bytes]:
    where = (site.gateway.base_url, "--api-key", site.key, "--model", MODEL)
    rate = ("--rate", f"{per_s:g}", "--duration", f"{seconds:g}", "--seed", "1")
    what = (kind, "--max-tokens", str(_TOKENS), "--json", str(report))
    command = [sys.executable, "-m", "shared.process.cli", "bench", *where, *rate, *what]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
