"""The GPU-seconds of requests that run at once (PROTOCOL §4.4): agents measure by it, and gateways where
agents do not.

Of each second in which ``n`` requests run, each of them uses ``1/n`` of a GPU-second. So all together use
exactly the time in which any of them ran. It is kept as the virtual time of processor sharing, which runs at
``1/n``: O(1) when a request comes or goes, and nothing while it runs.
"""


class GpuClock:
    """Of one engine. Pure: ``now`` is an argument, in seconds of a clock that does not go back."""

    __slots__ = ("_at_s", "_virtual_s", "running")

    def __init__(self) -> None:
        self.running = 0
        """Requests that run now."""
        self._at_s = 0.0
        self._virtual_s = 0.0

    def start(self, now: float) -> float:
        """A request runs from now on. What it returns belongs to its :meth:`end`."""
        if self.running:
            if now > self._at_s:
                self._virtual_s += (now - self._at_s) / self.running
                self._at_s = now
        else:  # from zero, so that no error adds up over days
            self._virtual_s, self._at_s = 0.0, now
        self.running += 1
        return self._virtual_s

    def end(self, started: float, now: float) -> float:
        """It runs no more; returns the GPU-seconds that it used. ``started`` is what :meth:`start`
        returned."""
        assert self.running, "ended without having started"
        if now > self._at_s:
            self._virtual_s += (now - self._at_s) / self.running
            self._at_s = now
        self.running -= 1
        return self._virtual_s - started
