"""How far the time of day is believed when audit segments are deleted.

What is deleted does not come back when a clock is right again. So nothing is deleted by a clock that was set
ahead, or that was ahead when the process began: the time of day is believed as far as it has passed by a
clock that nobody sets. A machine that was off for long looks the same at first: there the time of day is
believed after ``TRIAL_S`` of running.
"""

from dataclasses import dataclass, fields, replace
from pathlib import Path

import orjson

SLACK_S = 86_400.0
"""So much may have passed while nothing ran."""

LATEST_S = 253_402_300_800.0
"""The year 10000, which no day can name."""

TRIAL_S = 7 * 86_400.0
"""How long a gateway must have run under a time of day that is further ahead."""


@dataclass(frozen=True, slots=True)
class TrustedTime:
    """The time of day that counts, seconds since 1970."""

    time_s: float
    ahead_s: float = 0.0
    """By how much the clock has been ahead of it."""
    ahead_for_s: float = 0.0
    """For how much running time."""

    def after(self, passed_s: float, wall_s: float) -> "TrustedTime":
        """``passed_s`` later, while the gateway ran; the clock says ``wall_s``. A clock that was set back is
        believed at once: by that one less is old."""
        time_s = self.time_s + passed_s
        ahead_s = wall_s - time_s
        if ahead_s <= SLACK_S:
            return TrustedTime(wall_s)
        if abs(ahead_s - self.ahead_s) > SLACK_S:
            return TrustedTime(time_s, ahead_s)
        ahead_for_s = self.ahead_for_s + passed_s
        if ahead_for_s >= TRIAL_S:
            return TrustedTime(wall_s)
        return replace(self, time_s=time_s, ahead_for_s=ahead_for_s)


def read_trusted_time(path: Path) -> TrustedTime | None:
    """None when there is none that can be read. Raises OSError."""
    try:
        value = orjson.loads(path.read_bytes())
        found = TrustedTime(*(float(value[each.name]) for each in fields(TrustedTime)))
        return found if 0 <= found.time_s < LATEST_S else None
    except (FileNotFoundError, ValueError, TypeError, KeyError):
        return None
