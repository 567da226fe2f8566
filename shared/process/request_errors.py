"""The errors of OpenAI's HTTP surface that gateway and built-in engine have in common. Pure.

Each program adds its own: ``gateway.domain.errors`` and ``agent.engines.torch.errors``. The tree::

    RequestError                    status  type                    code
    ├── BadRequest                  400     invalid_request_error   bad_request (or given)
    │   └── ContextTooLong          400     invalid_request_error   context_length_exceeded
    ├── Unauthenticated             401     authentication_error    invalid_api_key
    ├── ModelNotFound               404     invalid_request_error   model_not_found
    ├── RouteNotFound               404     invalid_request_error   unknown_url
    ├── MethodNotAllowed            405     invalid_request_error   method_not_allowed
    ├── BodyTooLarge                413     invalid_request_error   request_too_large
    └── QueueFull                   429     overloaded_error        queue_full
"""

from typing import Any


class RequestError(Exception):
    """A request that is answered with an error. ``message`` tells the client what to do."""

    status: int = 500
    type: str = "server_error"
    code: str = "internal_error"
    retry_after_s: float | None = None
    """When to come back, in seconds; becomes ``Retry-After`` and ``retry-after-ms``."""
    should_retry: bool | None = None
    """Told to SDKs as ``x-should-retry`` where their rule of thumb by status would be wrong."""

    def __init__(
        self,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        retry_after_s: float | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        if code is not None:
            self.code = code
        if retry_after_s is not None:
            self.retry_after_s = retry_after_s

    def openai_body(self) -> dict[str, Any]:
        """The error object that OpenAI's SDKs read."""
        return {"error": {"message": self.message, "type": self.type, "param": self.param, "code": self.code}}


class BadRequest(RequestError):
    status, type, code = 400, "invalid_request_error", "bad_request"


class ContextTooLong(BadRequest):
    """The prompt, or prompt and answer together, has more tokens than the model can hold."""

    code = "context_length_exceeded"


class Unauthenticated(RequestError):
    status, type, code = 401, "authentication_error", "invalid_api_key"


class ModelNotFound(RequestError):
    """The model is not served here."""

    status, type, code = 404, "invalid_request_error", "model_not_found"


class RouteNotFound(RequestError):
    status, type, code = 404, "invalid_request_error", "unknown_url"


class MethodNotAllowed(RequestError):
    """``allowed`` are the methods the path does take."""

    status, type, code = 405, "invalid_request_error", "method_not_allowed"

    def __init__(self, message: str, allowed: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.allowed = allowed


class BodyTooLarge(RequestError):
    status, type, code = 413, "invalid_request_error", "request_too_large"


class QueueFull(RequestError):
    """The places for requests that wait are taken, or the wait predicted is longer than allowed."""

    status, type, code = 429, "overloaded_error", "queue_full"
