"""Memory and descriptors of processes over time, and whether they grow."""

import asyncio
import statistics
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tests.bench.figures import cpu_s
from tests.chaos.house import ChaosHouse
from tests.support.leaks import descriptor_count, rss_bytes

EVERY_S = 2.0


@dataclass(frozen=True, slots=True)
class Sample:
    at_s: float
    rss_bytes: int
    descriptors: int


@dataclass(frozen=True, slots=True)
class Drift:
    """Of one process: the median of the last fifth of its samples against that of the second."""

    process: str
    rss: float
    """0.05 is 5 % more."""
    rss_bytes: int
    descriptors: int
    """How many more."""
    lived_s: float

    def __str__(self) -> str:
        return (
            f"{self.process:<14} RSS {self.rss_bytes / 2**20:6.1f} MiB {self.rss:+.1%}, "
            f"descriptors {self.descriptors:+d} over {self.lived_s:.0f} s"
        )


def drift_of(process: str, samples: Sequence[Sample]) -> Drift | None:
    """None with fewer than ten samples. The first fifth is warm-up."""
    fifth = len(samples) // 5
    if fifth < 2:
        return None
    early, late = samples[fifth : 2 * fifth], samples[-fifth:]
    before = statistics.median(sample.rss_bytes for sample in early)
    after = statistics.median(sample.rss_bytes for sample in late)
    more = statistics.median(sample.descriptors for sample in late) - statistics.median(
        sample.descriptors for sample in early
    )
    return Drift(process, after / before - 1, int(after), int(more), samples[-1].at_s - samples[0].at_s)


class Sampler:
    """Looks at gateway and agents every few seconds."""

    def __init__(self, house: ChaosHouse, clock: Callable[[], float]) -> None:
        self._house = house
        self._clock = clock
        self._samples: defaultdict[tuple[str, int], list[Sample]] = defaultdict(list)
        self._cpu: dict[int, tuple[str, float]] = {}

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            self.look()
            await asyncio.sleep(EVERY_S)

    def look(self) -> None:
        """One sample of each process that lives."""
        now_s = self._clock()
        children = {"gateway": self._house.gateway, **self._house.agents}
        children |= {f"{name}-engine": engine.child for name, engine in self._house.engines.items()}
        for name, child in children.items():
            try:
                self._cpu[child.pid] = (name, cpu_s(child.pid))
                sample = Sample(now_s, rss_bytes(child.pid), descriptor_count(child.pid))
            except (OSError, IndexError, ValueError):
                continue  # it is being killed
            if not name.endswith("-engine"):
                self._samples[name, child.pid].append(sample)

    def drifts(self, from_s: float) -> list[Drift]:
        """Of the processes that live now and lived at ``from_s``, from then on."""
        children = {"gateway": self._house.gateway, **self._house.agents}
        found = []
        for name, child in children.items():
            samples = self._samples.get((name, child.pid), [])
            if samples and samples[0].at_s <= from_s:
                drift = drift_of(name, [sample for sample in samples if sample.at_s >= from_s])
                found += [drift] if drift is not None else []
        return found

    def cpu_s(self) -> dict[str, float]:
        """Seconds of CPU by kind of process, dead ones included."""
        total: defaultdict[str, float] = defaultdict(float)
        for name, spent_s in self._cpu.values():
            kind = "gateway" if name == "gateway" else "engines" if name.endswith("-engine") else "agents"
            total[kind] += spent_s
        return dict(total)
