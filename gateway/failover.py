"""What becomes of a request whose stream failed before its response began (SCHEDULING §6). Pure data."""

from enum import Enum, auto

from gateway.admission import RETRY_AFTER_S
from gateway.domain import Request
from gateway.errors import BodyTooLarge, DeadlineExceeded, EngineError, NoDeployment, RequestError
from gateway.scheduling.base import ANY_ROUTE
from shared.errors import ErrorCode


class Effect(Enum):
    """What an engine may have done with a request when its stream failed."""

    NONE = auto()
    """It never saw it."""
    HARMLESS = auto()
    """It may have worked on it. Inference on the built-in routes may be done again, anything else may not."""
    FINAL = auto()
    """It was answered, in a way; another engine would do no better."""


class Trouble(Enum):
    """What went wrong with an attempt, as far as deployment health and the retry budget are concerned."""

    REFUSED = auto()
    """The agent has no slot: levels crossed on the wire."""
    UNREACHABLE = auto()
    """There is no engine."""
    OVERLOADED = auto()
    """The engine has enough to do, and says so (429, 503)."""
    STATUS = auto()
    """The engine answered with another 5xx."""
    BROKEN = auto()
    """The answer is malformed or was cut."""
    TIMEOUT = auto()
    """The engine took longer than it may, for its first byte, between bytes or in all."""
    STALLED = auto()
    """The answer stopped for longer than its rhythm explains."""
    LOST = auto()
    """The agent's session is over."""
    DRAINING = auto()
    """The agent is going away in order."""


EFFECTS: dict[ErrorCode, Effect] = {
    ErrorCode.REFUSED: Effect.NONE,
    ErrorCode.ENGINE_UNREACHABLE: Effect.NONE,
    ErrorCode.SESSION_LOST: Effect.HARMLESS,
    ErrorCode.DRAINING: Effect.HARMLESS,
    ErrorCode.OVERLOADED: Effect.HARMLESS,
}
"""Codes that are not here are final."""

TROUBLED = frozenset({ErrorCode.REFUSED, ErrorCode.ENGINE_UNREACHABLE, ErrorCode.OVERLOADED})
"""Codes after which a deployment is left alone for a moment, so that the one that fails fastest does not draw
all requests to itself."""


def may_go_elsewhere(request: Request, code: ErrorCode, max_attempts: int) -> bool:
    """Whether a request whose stream failed so may be given to a deployment again."""
    effect = EFFECTS.get(code, Effect.FINAL)
    safe = effect is Effect.NONE or (effect is Effect.HARMLESS and request.route != ANY_ROUTE)
    return safe and request.body.replayable and len(request.attempts) < max_attempts


def request_error(code: ErrorCode, reason: str) -> RequestError:
    """What to tell the client when there is no other attempt. ``reason`` is the agent's, fit to be read."""
    detail = f": {reason}" if reason else ""
    if code in (ErrorCode.REFUSED, ErrorCode.OVERLOADED, ErrorCode.DRAINING):
        return NoDeployment(f"No agent took the request{detail}.", retry_after_s=RETRY_AFTER_S)
    if code in (ErrorCode.DEADLINE, ErrorCode.ENGINE_TIMEOUT):
        return DeadlineExceeded(f"The engine did not answer in time{detail}.")
    if code is ErrorCode.TOO_LARGE:
        return BodyTooLarge(f"The request is larger than the engine's agent takes{detail}.")
    if code is ErrorCode.ENGINE_UNREACHABLE:
        return EngineError(f"The engine could not be reached{detail}.")
    if code is ErrorCode.SESSION_LOST:
        return EngineError("The connection to the engine's host was lost before it answered.")
    return EngineError(f"The engine failed before it answered{detail}.")


def break_reason(code: ErrorCode, reason: str) -> str:
    """What to tell the client when a response breaks that had begun."""
    if code is ErrorCode.SESSION_LOST:
        return "The connection to the engine's host was lost in the middle of the answer."
    detail = f": {reason}" if reason else ""
    if code in (ErrorCode.DEADLINE, ErrorCode.ENGINE_TIMEOUT):
        return f"The engine fell silent in the middle of the answer{detail}."
    if code is ErrorCode.DRAINING:
        return f"The engine's agent is shutting down and could not finish the answer{detail}."
    return f"The engine failed in the middle of the answer{detail}."
