"""What is done with a request whose stream failed before its response began. Pure data."""

from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from enum import Enum, auto

from gateway.domain.errors import (
    NO_DEPLOYMENT_RETRY_S,
    BodyTooLarge,
    DeadlineExceeded,
    EngineBusy,
    EngineError,
    NoDeployment,
    RequestDeclined,
    RequestError,
)
from gateway.domain.request import Request
from shared.protocol.errors import ErrorCode
from shared.protocol.messages import Headers, Refusal, ResponseHead
from shared.protocol.routes import ANY_ROUTE


class Effect(Enum):
    """What an engine may have done with a request when its stream failed."""

    NONE = auto()
    """The engine never saw the request."""
    HARMLESS = auto()
    """It may have worked on it. Inference on the built-in routes may be done again, anything else may not."""
    FINAL = auto()
    """The engine refused the request itself; another engine would do no better."""


_NONE, _HARMLESS = Effect.NONE, Effect.HARMLESS
"""Members of enumerations for the path of every request: a global is found faster."""


class Trouble(Enum):
    """What went wrong with an attempt, as far as deployment health and the retry budget are concerned."""

    NO_PATH = auto()
    """The engine has nothing at the request's path, whatever the model."""
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
    ENGINE_LOST = auto()
    """The agent says that its engine is not there any more."""
    DRAINING = auto()
    """The agent is going away in order."""
    DECLINED = auto()
    """The agent, a gateway, will not take the request later either."""


RULES: dict[ErrorCode, tuple[Trouble | None, Effect]] = {
    ErrorCode.REFUSED: (Trouble.REFUSED, Effect.NONE),
    ErrorCode.DECLINED: (Trouble.DECLINED, Effect.NONE),
    ErrorCode.ENGINE_UNREACHABLE: (Trouble.UNREACHABLE, Effect.NONE),
    ErrorCode.SESSION_LOST: (Trouble.LOST, Effect.HARMLESS),
    ErrorCode.DRAINING: (Trouble.DRAINING, Effect.HARMLESS),
    ErrorCode.CANCELLED: (Trouble.DRAINING, Effect.HARMLESS),  # by an agent that stops, before 0.2
    ErrorCode.OVERLOADED: (Trouble.OVERLOADED, Effect.HARMLESS),
    ErrorCode.ENGINE_FAILED: (Trouble.BROKEN, Effect.HARMLESS),
    ErrorCode.INTERNAL: (Trouble.BROKEN, Effect.HARMLESS),
    ErrorCode.ENGINE_TIMEOUT: (Trouble.TIMEOUT, Effect.HARMLESS),
}
"""What a stream that the agent reset says of its deployment and of the request. Codes that are not here are
final and nobody's fault."""

ENGINES_FAULT = frozenset({Trouble.STATUS, Trouble.BROKEN, Trouble.TIMEOUT, Trouble.STALLED})
"""These count against ``max_attempts``: a request that engine after engine fails on may be what breaks them.
The others say nothing of the request; they are bounded by :data:`MOST_MOVES` and by the queue's patience."""

MOST_MOVES = 16
"""Deployments one request is given to without getting anywhere."""


class AttemptCount:
    """Counts the failed attempts of one request, and its moves for reasons that are not the engine's
    fault."""

    __slots__ = ("_failures", "_most_failures", "_moves")

    def __init__(self, most_failures: int) -> None:
        self._most_failures = most_failures
        self._failures = self._moves = 0

    def count(self, trouble: Trouble | None) -> bool:
        """Count one more attempt that failed; None: for an unknown reason. True while another is allowed."""
        self._moves += 1
        self._failures += trouble is None or trouble in ENGINES_FAULT
        return self._failures < self._most_failures and self._moves < MOST_MOVES

    def count_move(self) -> bool:
        """Count a move for a reason that is not the engine's fault. False if there were too many."""
        allowed = self._moves < MOST_MOVES
        self._moves += allowed
        return allowed

    def reset(self) -> None:
        """The request made progress: count from zero."""
        self._failures = self._moves = 0


_NOT_IMPLEMENTED = 501


def trouble_of_status(status: int) -> Trouble | None:
    """What an engine's status says of it; None: it is an answer."""
    if status in (429, 503):
        return Trouble.OVERLOADED
    return Trouble.STATUS if status >= 500 and status != _NOT_IMPLEMENTED else None


def trouble_of(head: ResponseHead) -> Trouble | None:
    """Like :func:`trouble_of_status`, but a head that its agent marked as a refusal of this request is an
    answer."""
    if head.status < 429 or head.refusal is Refusal.REQUEST:
        return None
    return trouble_of_status(head.status)


MOST_REFUSALS = 256
"""So often a request is given to engines that have enough to do, within the time that it may wait."""


@dataclass(slots=True)
class Refusals:
    """The engines that had enough to do with other requests while one waited."""

    count: int = 0
    status: int = 503
    """What the last of them said, 429 or 503."""
    until_s: float = 0.0
    """When that one wants to be asked again."""

    def note(self, head: ResponseHead | None, now: float) -> float:
        """One more; None: its agent refused instead. Seconds in which it wants to be asked again, 0 where it
        does not say."""
        self.count += 1
        self.status = 503 if head is None else head.status
        wait_s = 0.0 if head is None else retry_after_s(head.headers) or 0.0
        self.until_s = now + wait_s
        return wait_s

    def error(self, wait_s: float, now: float) -> EngineBusy:
        """What to tell the client at ``now``, when a slot is expected in ``wait_s``."""
        return EngineBusy(
            f"Every engine that was asked had enough to do with other requests, the last time with status "
            f"{self.status}, for as long as this request may wait; try again later.",
            status=self.status,
            retry_after_s=max(wait_s, self.until_s - now),
        )


def retry_after_s(headers: Headers) -> float | None:
    """Seconds after which an engine wants to be asked again (RFC 9110 §10.2.3, and ``retry-after-ms`` as
    OpenAI writes it), not below 0; None when it does not say. A date counts from the engine's own ``date``,
    so that nobody's clock matters; without one it says nothing."""
    said = {name: text for name, text in headers if name in ("retry-after", "retry-after-ms", "date")}
    for name, unit_s in (("retry-after-ms", 0.001), ("retry-after", 1.0)):
        try:
            seconds = float(said[name]) * unit_s
        except (KeyError, ValueError):
            continue
        if 0.0 <= seconds < float("inf"):
            return seconds
    try:
        apart = parsedate_to_datetime(said["retry-after"]) - parsedate_to_datetime(said["date"])
    except (KeyError, ValueError, TypeError, OverflowError):
        return None
    return max(0.0, apart.total_seconds())


def may_be_repeated(request: Request, effect: Effect) -> bool:
    """Whether a request whose attempt failed may be given to an engine again."""
    safe = effect is _NONE or (effect is _HARMLESS and request.route != ANY_ROUTE)
    return safe and not request.body.rest_begun


def request_error(code: ErrorCode, reason: str) -> RequestError:
    """What to tell the client when there is no other attempt. ``reason`` is the agent's, fit to be read."""
    detail = f": {reason}" if reason else ""
    if code is ErrorCode.DECLINED:
        declined = reason or "The only agent that serves the model does not take this request"
        return RequestDeclined(f"{declined.rstrip('.')}.")
    if code in (ErrorCode.REFUSED, ErrorCode.OVERLOADED, ErrorCode.DRAINING):
        return NoDeployment(f"No agent took the request{detail}.", retry_after_s=NO_DEPLOYMENT_RETRY_S)
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
