"""GPU-seconds of requests: the time each had its engine for itself, or would have had.

A request that runs alone in a deployment for a second uses a GPU-second; of ``n`` that run at once each
uses ``1/n`` of one in a second. So all requests of a deployment together use exactly the time in which
it had any, whatever their number. A deployment counts as one, however many GPUs its engine spans. Time
in an engine is that from the opening of a stream until both ends have let go of it: every attempt
counts, those that failed, and the copies of hedged requests, too.

Kept as the virtual time of processor sharing, which runs at ``1/n``: O(1) when a request comes or goes.
"""

from collections.abc import Hashable


class _Clock:
    __slots__ = ("at_s", "running", "virtual_s")

    def __init__(self, now: float) -> None:
        self.at_s = now
        self.virtual_s = 0.0
        self.running = 0

    def advance(self, now: float) -> None:
        if now > self.at_s:
            if self.running:
                self.virtual_s += (now - self.at_s) / self.running
            self.at_s = now


class GpuTimeMeter:
    """Who runs beside whom. One for a dispatcher; holds what runs and no more."""

    def __init__(self) -> None:
        self._clocks: dict[Hashable, _Clock] = {}
        self._began_s: dict[Hashable, float] = {}

    def __len__(self) -> int:
        return len(self._began_s)

    def came(self, attempt: Hashable, deployment: Hashable, now: float) -> None:
        """``attempt`` runs in ``deployment`` from now on."""
        clock = self._clocks.get(deployment)
        if clock is None:
            clock = self._clocks[deployment] = _Clock(now)
        clock.advance(now)
        clock.running += 1
        self._began_s[attempt] = clock.virtual_s

    def went(self, attempt: Hashable, deployment: Hashable, now: float) -> float:
        """It does so no more; the GPU-seconds it used. 0.0 for one that never came."""
        began_s = self._began_s.pop(attempt, None)
        if began_s is None:
            return 0.0
        clock = self._clocks[deployment]
        clock.advance(now)
        clock.running -= 1
        if not clock.running:
            del self._clocks[deployment]
        return clock.virtual_s - began_s
