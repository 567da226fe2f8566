"""API keys whose requests several engines answer with errors while they serve others well. Pure."""

from gateway.scheduling.recent import RecentDict

SUSPECTED_S = 60.0
"""So long after the last such request. One that a further engine served ends it."""

MOST = 4096
"""Keys remembered; those suspected longest ago are forgotten first."""

SERVED_S = 10.0
"""An engine that served another key this recently is well enough."""


class FailingKeys:
    """The suspected keys of one gateway."""

    def __init__(self) -> None:
        self._since_s = RecentDict[str, float](MOST)

    def __len__(self) -> int:
        return len(self._since_s)

    def add(self, key: str, now: float) -> None:
        """A request of ``key`` failed by what it asks."""
        self._since_s[key] = now

    def clear(self, key: str) -> None:
        """A request of ``key`` that had failed was served: engines are to blame."""
        self._since_s.pop(key, None)

    def is_failing(self, key: str, now: float) -> bool:
        since_s = self._since_s.get(key)
        return since_s is not None and now - since_s < SUSPECTED_S


class ServedTenants:
    """Which key one deployment served last, and when it last served another key."""

    def __init__(self) -> None:
        self._key: str | None = None
        self._last_s = self._before_s = float("-inf")

    def note(self, key: str, now: float) -> None:
        """An answer to ``key`` came whole."""
        if key != self._key:
            self._key, self._before_s = key, self._last_s
        self._last_s = now

    def served_others(self, key: str, now: float) -> bool:
        """Whether another key than ``key`` was served within ``SERVED_S``."""
        served_s = self._before_s if key == self._key else self._last_s
        return now - served_s < SERVED_S
