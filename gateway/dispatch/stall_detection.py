"""When a silence is more than an answer's rhythm explains, and whose it is."""

from gateway.dispatch.attempt import Attempt
from gateway.dispatch.settings import DispatchSettings
from shared.protocol import limits

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


LOST_PATIENCE_S = 30.0
"""So long it is waited for an engine that its agent has declared lost and from which nothing comes, when
there is no other: an agent may err about an engine that is busy."""

QUIET_S = 1.0
"""A tunnel on which nothing came for so long is asked whether it lives, before an engine is blamed."""

ANSWER_S = 1.0
"""When to look for the answer. A tunnel that gives none is suspended soon (PROTOCOL §7.2)."""


def may_be_the_tunnels(attempt: Attempt, now: float) -> bool:
    """Whether a silence that is too long for an engine may yet be the tunnel's. If so, look again after
    ``ANSWER_S``: by then the tunnel has been heard, or the time comes when it counts as away."""
    endpoint = attempt.deployment.session.endpoint
    quiet_s = endpoint.quiet_s()
    asked_s, attempt.asked_s = attempt.asked_s, None
    if asked_s is None:
        if quiet_s <= QUIET_S:
            return False
        endpoint.probe()
        asked_s = now
    elif quiet_s <= now - asked_s or now - asked_s > limits.SILENT_AFTER_S + ANSWER_S:
        return False
    attempt.asked_s = asked_s
    return True
