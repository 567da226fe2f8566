"""Another gateway has ejected a deployment, or opened its circuit: here it is probed. Pure.

A hint never takes a deployment away. Until a request of this gateway succeeds there, it gets one new request
at a time, and one failure opens its circuit, which five do otherwise. After ``SUSPECT_S`` it is as before.
After a success hints about it say nothing for ``TRUSTED_S``: what was seen here counts more than what others
say, so that one that says false things costs little.
"""

SUSPECT_S = 10.0
TRUSTED_S = 30.0


class Suspicion:
    """Of one deployment."""

    __slots__ = ("_probe", "_trusted_until_s", "until_s")

    def __init__(self) -> None:
        self.until_s = 0.0
        """Until when it is suspect; 0.0: it is not."""
        self._probe: str | None = None
        """The request that went there last."""
        self._trusted_until_s = float("-inf")

    @property
    def active(self) -> bool:
        """Whether it is suspect, as of the last :meth:`advance`."""
        return self.until_s > 0.0

    def hint(self, now: float) -> bool:
        """Another gateway says that it is not well. Whether that makes it suspect."""
        if self.active or now < self._trusted_until_s:
            return False
        self.until_s, self._probe = now + SUSPECT_S, None
        return True

    def advance(self, now: float) -> None:
        """Time has passed."""
        if 0.0 < self.until_s <= now:
            self._end(now)

    def cap(self, in_flight: int) -> int:
        """How many requests it may run at once: one more than before it was suspect, while it is."""
        return in_flight + (self._probe is None)

    def started(self, request: str) -> None:
        """A request goes there."""
        self._probe = request

    def released(self, request: str) -> None:
        """A request's slot is free again, and nothing was seen of it that ended the suspicion."""
        if request == self._probe:
            self._probe = None

    def answered(self, request: str, now: float) -> bool:
        """The head of an answer came. Whether that ends the suspicion: it does if it is the probe's."""
        if not self.active or request != self._probe:
            return False
        self._end(now)
        return True

    def succeeded(self, now: float) -> bool:
        """An answer came whole. Whether that ends the suspicion."""
        if not self.active:
            return False
        self._end(now)
        return True

    def confirmed(self) -> None:
        """A request failed there: its circuit opened, and says the rest."""
        self.until_s, self._probe = 0.0, None

    def _end(self, now: float) -> None:
        self.until_s, self._probe = 0.0, None
        self._trusted_until_s = now + TRUSTED_S
