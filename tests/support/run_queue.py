"""How much longer than its own time a process takes because others have the processors."""

import asyncio
import contextlib
from bisect import bisect_left, bisect_right
from collections.abc import Callable
from dataclasses import dataclass, field
from operator import itemgetter
from pathlib import Path

import psutil  # type: ignore[import-untyped]

EVERY_S = 0.5


@dataclass(slots=True)
class RunQueue:
    """Watches this process and all it has started. ``clock`` gives the seconds that times are told in.

    Linux counts for each thread the time in which it ran and in which it could have run; the first threads of
    the processes are taken. Where the kernel does not count it nothing seems slow.
    """

    clock: Callable[[], float]
    _last: dict[int, tuple[int, int]] = field(default_factory=dict)
    _samples: list[tuple[float, int, int]] = field(default_factory=list)
    """When, and how long all ran and waited since the sample before, in nanoseconds."""

    async def watch(self) -> None:
        """Until this is cancelled."""
        while True:
            self._sample()
            await asyncio.sleep(EVERY_S)

    def slowness(self, from_s: float, until_s: float) -> float:
        """How many times as long as without others everything took between these times; at least 1."""
        when = itemgetter(0)
        first = bisect_left(self._samples, from_s, key=when)
        within = self._samples[first : bisect_right(self._samples, until_s + EVERY_S, key=when)]
        ran, waited = sum(each[1] for each in within), sum(each[2] for each in within)
        return (ran + waited) / ran if ran else 1.0

    def _sample(self) -> None:
        this = psutil.Process()
        now = {}
        for pid in [this.pid, *(child.pid for child in this.children(recursive=True))]:
            with contextlib.suppress(OSError, ValueError):
                ran, waited, _ = Path(f"/proc/{pid}/schedstat").read_text().split()
                now[pid] = int(ran), int(waited)
        changes = [
            (ran - before[0], waited - before[1])
            for pid, (ran, waited) in now.items()
            if self._last
            and (before := self._last.get(pid, (0, 0)))[0] <= ran  # else it is another one by now
        ]
        self._last = now
        self._samples.append(
            (self.clock(), sum(each[0] for each in changes), sum(each[1] for each in changes))
        )
