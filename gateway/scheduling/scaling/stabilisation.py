"""Keeps what is wanted from going up and down with every gust: more at once, fewer after a while. Pure."""

from collections import deque

from gateway.scheduling.scaling.data import ScalingRule

MOST_KEPT = 4096
"""Needs remembered of one class; the oldest is forgotten first."""


class WantedReplicas:
    """Of one model on one class of device."""

    def __init__(self, wanted: int = 0, now: float = float("-inf")) -> None:
        """``wanted`` were there when this began, at ``now``: they count as needed until then."""
        self.wanted = wanted
        self.changed_s = float("-inf")
        self._needs: deque[tuple[float, int]] = deque([(now, wanted)], maxlen=MOST_KEPT)
        """When so many were needed; each more than all that came later."""

    def need(self, replicas: int, rule: ScalingRule, lead_s: float, now: float) -> int:
        """``replicas`` are needed now. Returns how many are wanted: at once where that is more, and fewer
        only when no more were needed within the window. It is at least as long as a new replica takes to be
        ready."""
        window_s = max(rule.stabilisation_s, lead_s)
        while self._needs and self._needs[-1][1] <= replicas:
            self._needs.pop()
        self._needs.append((now, replicas))
        while now - self._needs[0][0] > window_s:
            self._needs.popleft()
        most = self._needs[0][1]
        if most > self.wanted or (most < self.wanted and now - self.changed_s >= rule.cooldown_s):
            self.wanted, self.changed_s = most, now
        return self.wanted


class LeadTime:
    """How long a replica takes from when it is wanted until it is ready, of one model on one class."""

    MOST_S = 3600.0
    """What took longer was not waiting for a machine."""

    WEIGHT = 0.3

    def __init__(self) -> None:
        self.measured_s: float | None = None
        self._since_s: float | None = None
        self._ready = 0

    def note(self, wanted: int, ready: int, now: float) -> None:
        """So many are wanted and so many ready."""
        came = ready > self._ready
        if self._since_s is not None and came:
            took_s = now - self._since_s
            if took_s <= self.MOST_S:
                before_s = took_s if self.measured_s is None else self.measured_s
                self.measured_s = before_s + self.WEIGHT * (took_s - before_s)
        self._ready = ready
        if wanted <= ready:
            self._since_s = None
        elif self._since_s is None:
            self._since_s = now
