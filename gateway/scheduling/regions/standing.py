"""Whether a region is used, after it was away: failover, and failback with hysteresis. Pure.

A region that is back may go again at once, and each time it takes with it what runs there. So one that was
away for longer than a blip is left alone for ``failback_s``, twice as long each time in a row, and then gets
a share that grows to all of what would go there.
"""

from enum import Enum, auto

from gateway.scheduling.regions.settings import RegionSettings

FIRST_SHARE = 0.1
"""What a region gets first once it is no longer left alone."""

MOST_DOUBLINGS = 16


class Standing(Enum):
    """What is known of a region. The value is the word for a metric."""

    UP = "up"
    BLIP = "blip"
    """It has just gone, and may be back at once."""
    DOWN = "down"
    HELD = "held"
    """It is back, and left alone."""
    RETURNING = "returning"
    """It gets a share of what would go there."""


class Event(Enum):
    """What may happen to it."""

    LOST = auto()
    """Nothing of it can be given anything."""
    FOUND = auto()
    DUE = auto()
    """The time of the present standing is over."""


TRANSITIONS = {
    (Standing.UP, Event.LOST): Standing.BLIP,
    (Standing.BLIP, Event.FOUND): Standing.UP,
    (Standing.BLIP, Event.DUE): Standing.DOWN,
    (Standing.DOWN, Event.FOUND): Standing.HELD,
    (Standing.HELD, Event.LOST): Standing.DOWN,
    (Standing.HELD, Event.DUE): Standing.RETURNING,
    (Standing.RETURNING, Event.LOST): Standing.DOWN,
    (Standing.RETURNING, Event.DUE): Standing.UP,
}
"""What is not named here changes nothing."""


class RegionStanding:
    """One region's."""

    def __init__(self, settings: RegionSettings, now: float) -> None:
        """It is there, for the first time."""
        self.settings = settings
        self.standing = Standing.UP
        self.since_s = now
        self.until_s: float | None = None
        """When :meth:`advance` is due; None: time changes nothing."""
        self.failures = 0
        """How often in a row it was away for longer than a blip, as far as that is not forgotten."""
        self._failed_s = float("-inf")
        self._blips: list[float] = []

    def lost(self, now: float) -> bool:
        """Nothing of it can be given anything. Returns whether its standing is another one."""
        return self._happens(Event.LOST, now)

    def found(self, now: float) -> bool:
        """Something of it can be given work again. Returns whether its standing is another one."""
        return self._happens(Event.FOUND, now)

    def advance(self, now: float) -> bool:
        """Time has passed. Returns whether its standing is another one."""
        changed = False
        while self.until_s is not None and self.until_s <= now:
            self._happens(Event.DUE, self.until_s)
            changed = True
        return changed

    def share(self, now: float) -> float:
        """The share of what would go there that it gets now, 0 to 1."""
        if self.standing is Standing.RETURNING:
            ramp_s = self.settings.ramp_s
            return FIRST_SHARE + (1.0 - FIRST_SHARE) * min(1.0, (now - self.since_s) / ramp_s)
        return 0.0 if self.standing in (Standing.DOWN, Standing.HELD) else 1.0

    def _happens(self, event: Event, now: float) -> bool:
        after = TRANSITIONS.get((self.standing, event))
        if after is None:
            return False
        settings, before = self.settings, self.standing
        if before is Standing.BLIP and after is Standing.UP and self._blips_too_often(now):
            self._fail(now)
            after = Standing.HELD
        elif after is Standing.DOWN:
            self._fail(now)
        self.standing, self.since_s = after, now
        self.until_s = None
        if after is Standing.BLIP:
            self.until_s = now + settings.blip_s
        elif after is Standing.HELD:
            self.until_s = now + self.hold_s
        elif after is Standing.RETURNING:
            self.until_s = now + settings.ramp_s
        return True

    @property
    def hold_s(self) -> float:
        """For how long it is left alone after its latest failure."""
        doublings = min(max(self.failures - 1, 0), MOST_DOUBLINGS)
        return min(self.settings.failback_s * 2.0**doublings, self.settings.failback_most_s)

    def _fail(self, now: float) -> None:
        forgotten = now - self._failed_s >= self.settings.forget_s
        self.failures = 1 if forgotten else self.failures + 1
        self._failed_s = now
        self._blips.clear()

    def _blips_too_often(self, now: float) -> bool:
        self._blips = [at_s for at_s in self._blips if now - at_s < self.settings.forget_s]
        self._blips.append(now)
        return len(self._blips) >= self.settings.blips
