"""How long a request may be kept waiting, with a slot free, for a deployment that has none (SCHEDULING
§4)."""

PATIENCE_S = 5.0
"""A request waits for a better deployment for this long at most, all in all."""

MOST_PATIENT = 64
"""Requests of one model that wait so at once, at most. What a slot will come free for is guesswork beyond."""


class Patience:
    """Who waits so, and since when. Whoever was placed is ``over``; the others are forgotten in time."""

    LOOK_S = 0.25
    """The least time after which to look again unasked: a slot that comes free is seen at once anyway."""

    def __init__(self) -> None:
        self._since: dict[int, float] = {}

    def left_s(self, number: int, now: float) -> float:
        """How much longer the request ``number`` may wait."""
        since_s = self._since.get(number)
        return PATIENCE_S if since_s is None else since_s + PATIENCE_S - now

    def begin(self, number: int, now: float) -> bool:
        """It waits from now on, unless it does already. False when there are too many."""
        if number in self._since:
            return True
        if len(self._since) >= MOST_PATIENT:
            self._since = {each: at_s for each, at_s in self._since.items() if now < at_s + PATIENCE_S}
            if len(self._since) >= MOST_PATIENT:
                return False
        self._since[number] = now
        return True

    def over(self, number: int) -> None:
        """It was placed."""
        self._since.pop(number, None)
