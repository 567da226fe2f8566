"""When an answer's silence is more than its rhythm explains. Pure."""

from gateway.attempt import Attempt
from gateway.dispatch_settings import DispatchSettings

TIMES = 20.0
"""A silence is a stall when it is so many times as long as the answer's mean gap between pieces."""

LOOKS = 4
"""So often within ``stall_s`` it is looked whether bytes come: that exact is the rhythm known."""

LEAST_PIECES = 4
"""Pieces from which an answer has a rhythm: before them a prompt may still be worked on."""


def look_s(settings: DispatchSettings) -> float:
    """Seconds until the next look at an answer whose bytes come."""
    return min(settings.stall_s, settings.idle_s) / LOOKS


def idle_at_s(attempt: Attempt, settings: DispatchSettings) -> float:
    """When a silence that lasts is the end."""
    return attempt.quiet_s + settings.idle_s


def stalls_at_s(attempt: Attempt, settings: DispatchSettings) -> float:
    """When a silence that lasts is a stall; one that was seen already ends as any silence does."""
    if attempt.stalled or attempt.pieces < LEAST_PIECES or attempt.first_byte_s is None:
        return idle_at_s(attempt, settings)
    gap_s = (attempt.quiet_s - attempt.first_byte_s) / attempt.pieces
    return attempt.quiet_s + min(settings.idle_s, max(settings.stall_s, TIMES * gap_s))
