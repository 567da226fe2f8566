"""What can go wrong with a request, as the client sees it.

One exception per cause; ``gateway.api.errors`` is the one place that turns them into responses. Those that
the built-in engine has as well are defined in ``shared.process.request_errors``.
"""

# isort: off
from shared.process.request_errors import (
    BadRequest as BadRequest,
    BodyTooLarge as BodyTooLarge,
    ContextTooLong as ContextTooLong,
    MethodNotAllowed as MethodNotAllowed,
    ModelNotFound as ModelNotFound,
    QueueFull as QueueFull,
    RequestError as RequestError,
    RouteNotFound as RouteNotFound,
    Unauthenticated as Unauthenticated,
)

# isort: on
from shared.protocol.errors import ErrorCode

NO_DEPLOYMENT_RETRY_S = 2.0
"""After how long a client may ask again for a model that no agent serves now."""


class Forbidden(RequestError):
    status, type, code = 403, "permission_error", "forbidden"


class RouteNotSupported(RequestError):
    """The model is served, but by no engine that has what was asked for."""

    status, type, code = 404, "invalid_request_error", "route_not_supported"


class RecordNotFound(RequestError):
    """Nothing that is administered has this name."""

    status, type, code = 404, "invalid_request_error", "not_found"


class NameInUse(RequestError):
    """Something that is administered has this name already."""

    status, type, code = 409, "invalid_request_error", "name_in_use"


class RecordInWrongState(RequestError):
    """The record is there, but not in a state in which this can be done with it."""

    status, type, code = 409, "invalid_request_error", "wrong_state"
    should_retry = False


class NotOnDemand(RequestError):
    """The model is none that agents load and unload when they are told."""

    status, type, code = 409, "invalid_request_error", "not_on_demand"
    should_retry = False


class BatchNotCancellable(RequestError):
    """The batch has ended, or its results are being written."""

    status, type, code = 409, "invalid_request_error", "batch_not_cancellable"


class RangeNotSatisfiable(RequestError):
    """The range asked for begins behind the end (RFC 9110, section 15.5.17)."""

    status, type, code = 416, "invalid_request_error", "range_not_satisfiable"

    def __init__(self, size_bytes: int) -> None:
        super().__init__(f"The range begins behind the end: there are {size_bytes} bytes.", param="range")
        self.size_bytes = size_bytes


class JobNotFinished(RequestError):
    """A job that waits or runs has no result yet."""

    status, type, code = 409, "invalid_request_error", "job_not_finished"
    should_retry = False


class JobNotFailed(RequestError):
    """Only a job that failed can be tried again."""

    status, type, code = 409, "invalid_request_error", "job_not_failed"
    should_retry = False


class JobCancelled(RequestError):
    """A job that was cancelled has no result."""

    status, type, code = 409, "invalid_request_error", "job_cancelled"
    should_retry = False


class JobFailed(RequestError):
    """A job failed without an answer of an engine; ``status``, ``type`` and ``code`` may be those of its
    error."""

    status, type, code = 502, "server_error", "job_failed"
    should_retry = False


class WhatIfRuns(RequestError):
    """Another what-if runs on this host."""

    status, type, code = 409, "invalid_request_error", "whatif_runs"


class KeyReused(RequestError):
    """An idempotency key that stands for another request."""

    status, type, code = 422, "invalid_request_error", "idempotency_key_reused"


class BodyTimeout(RequestError):
    status, type, code = 408, "timeout_error", "request_timeout"


class ReadTooSlowly(RequestError):
    """The client read its answer too slowly while others waited for the engine that writes it."""

    status, type, code = 408, "timeout_error", "read_too_slowly"


class PathTooLong(RequestError):
    status, type, code = 414, "invalid_request_error", "path_too_long"


class UnsupportedEncoding(RequestError):
    """A compressed request body."""

    status, type, code = 415, "invalid_request_error", "unsupported_content_encoding"


class Misdirected(RequestError):
    """A request for another process of the gateway."""

    status, type, code = 421, "invalid_request_error", "misdirected_request"


class ProcessSilent(RequestError):
    """Another process on this host, which was asked for, does not answer."""

    status, type, code = 504, "server_error", "process_silent"


class UpgradeRequired(RequestError):
    """A plain request to the path at which agents open their WebSocket."""

    status, type, code = 426, "invalid_request_error", "upgrade_required"


class QueueTimeout(RequestError):
    """The request waited as long as it may and no slot came free."""

    status, type, code = 429, "overloaded_error", "queue_timeout"


class RateLimited(RequestError):
    """The key or its tenant has had what it may have for now; ``kind`` says of what, as OpenAI does."""

    status, code = 429, "rate_limit_exceeded"

    def __init__(
        self, message: str, *, kind: str, retry_after_s: float | None = None, should_retry: bool | None = None
    ) -> None:
        super().__init__(message, retry_after_s=retry_after_s)
        self.type = kind
        self.should_retry = should_retry


class QuotaExceeded(RequestError):
    """The tenant's budget of the day or month is used up: a retry in a moment would do no better."""

    status, type, code = 429, "insufficient_quota", "insufficient_quota"
    should_retry = False

    def __init__(self, message: str, *, retry_after_s: float | None = None, passing: bool = False) -> None:
        """``passing``: it is not spent yet; requests that run, here or elsewhere, have reserved the rest."""
        super().__init__(message, retry_after_s=retry_after_s)
        self.passing = passing


class HeadersTooLarge(RequestError):
    """More or longer header fields than are taken, or than a tunnel carries."""

    status, type, code = 431, "invalid_request_error", "headers_too_large"


class ClientGone(RequestError):
    """The client disconnected. Never sent, only logged and counted."""

    status, type, code = 499, "client_error", "client_closed_request"


class InternalError(RequestError):
    """A fault of the gateway itself; its log has the traceback under the request's id."""

    status, type, code = 500, "server_error", "internal_error"


class EngineRefused(RequestError):
    """An engine's own error for a client whose stream had begun. ``message`` is the engine's: it may quote
    the request, so only the client gets it."""

    status, type, code = 502, "server_error", "engine_refused"


class EngineBusy(RequestError):
    """Engines refused the request, as one too many, for as long as it may wait. ``status`` is the last one's,
    429 or 503."""

    status, type, code = 503, "overloaded_error", "engine_busy"

    def __init__(self, message: str, *, status: int, retry_after_s: float) -> None:
        super().__init__(message, retry_after_s=retry_after_s)
        self.status = status


class EngineError(RequestError):
    """The engine failed and nobody else could take the request."""

    status, type, code = 502, "server_error", "engine_failed"


class BuffersFull(RequestError):
    """The memory for request bodies is taken by other requests at this moment."""

    status, type, code = 503, "overloaded_error", "buffers_full"
    retry_after_s = 1.0


class Overloaded(RequestError):
    """The gateway's machine is short of memory."""

    status, type, code = 503, "overloaded_error", "overloaded"
    retry_after_s = 5.0


class StateUnavailable(RequestError):
    """The gateway's database cannot be asked who holds a key, so nobody is let in; or it cannot be read or
    written for the admin API."""

    status, type, code = 503, "server_error", "state_unavailable"
    retry_after_s = 5.0


class IssuerUnavailable(RequestError):
    """A token cannot be verified, because its issuer's keys could not be fetched."""

    status, type, code = 503, "server_error", "issuer_unavailable"
    retry_after_s = 5.0


class NoDeployment(RequestError):
    """The model is known, but nothing serves it at present."""

    status, type, code = 503, "server_error", "no_deployment"


class NoSlotFree(NoDeployment):
    """The request does not wait, and no slot is free for it."""


class RequestDeclined(NoDeployment):
    """Nothing that is asked may run the request, and that will stay so."""


class ShuttingDown(RequestError):
    status, type, code = 503, "server_error", "shutting_down"


class DeadlineExceeded(RequestError):
    """The client's own deadline passed; it has most likely stopped waiting, so a retry would do no better."""

    status, type, code = 504, "timeout_error", "deadline_exceeded"
    should_retry = False


class StreamBroken(Exception):
    """A response that had begun and cannot be finished.

    ``code`` is the wire code of what happened; ``reason`` is fit for the client to read. ``not_continued``:
    it was looked into whether another engine could go on with it. ``read_slowly``: its client was the reason.
    """

    def __init__(
        self, code: ErrorCode, reason: str, *, not_continued: bool = False, read_slowly: bool = False
    ) -> None:
        super().__init__(reason)
        self.code = code
        self.reason = reason
        self.not_continued = not_continued
        self.read_slowly = read_slowly


class StorageFull(RequestError):
    """There is no room for files, requests and results."""

    status, type, code = 507, "server_error", "storage_full"
