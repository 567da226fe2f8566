"""What can go wrong with a request in the engine process, as its HTTP surface says it.

The tree::

    EngineFault                     status  type                    code
    ├── InvalidRequest              400     invalid_request_error   (given)
    │   └── ContextLengthExceeded   400     invalid_request_error   context_length_exceeded
    ├── Unauthenticated             401     authentication_error    invalid_api_key
    ├── ModelNotFound               404     invalid_request_error   model_not_found
    ├── RouteNotFound               404     invalid_request_error   unknown_url
    ├── MethodNotAllowed            405     invalid_request_error   method_not_allowed
    ├── BodyTooLarge                413     invalid_request_error   request_too_large
    ├── QueueFull                   429     overloaded_error        queue_full
    ├── ComputationFailed           500     server_error            computation_failed
    ├── OutOfMemory                 503     server_error            out_of_memory
    └── Stopping                    503     server_error            engine_stopping

    ModelUnusable                   not of a request: the model cannot be served at all
"""

from typing import Any

from agent.engines.memory_words import tells_of_memory


class EngineFault(Exception):
    """A request that gets an error for an answer. ``message`` tells the client what to do."""

    status = 500
    type = "server_error"
    code = "internal_error"

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
        self.retry_after_s = retry_after_s
        if code is not None:
            self.code = code

    def body(self) -> dict[str, Any]:
        """The error object that OpenAI's SDKs understand."""
        return {"error": {"message": self.message, "type": self.type, "param": self.param, "code": self.code}}

    def headers(self) -> dict[str, str]:
        if self.retry_after_s is None:
            return {}
        return {
            "retry-after": str(max(1, round(self.retry_after_s))),
            "retry-after-ms": str(max(1, round(self.retry_after_s * 1000))),
        }


class InvalidRequest(EngineFault):
    status, type, code = 400, "invalid_request_error", "invalid_value"


class ContextLengthExceeded(InvalidRequest):
    """Prompt, or prompt and answer together, exceed what the model can hold."""

    code = "context_length_exceeded"


class EngineUnauthenticated(EngineFault):
    status, type, code = 401, "authentication_error", "invalid_api_key"


class EngineModelNotFound(EngineFault):
    status, type, code = 404, "invalid_request_error", "model_not_found"


class EngineRouteNotFound(EngineFault):
    status, type, code = 404, "invalid_request_error", "unknown_url"


class EngineMethodNotAllowed(EngineFault):
    status, type, code = 405, "invalid_request_error", "method_not_allowed"


class EngineBodyTooLarge(EngineFault):
    status, type, code = 413, "invalid_request_error", "request_too_large"


class EngineQueueFull(EngineFault):
    """Slots and local queue are taken."""

    status, type, code = 429, "overloaded_error", "queue_full"


class ComputationFailed(EngineFault):
    """The model's computation raised; the process goes on."""

    status, type, code = 500, "server_error", "computation_failed"


class OutOfMemory(EngineFault):
    """There was not enough memory for this request; the process goes on."""

    status, type, code = 503, "server_error", "out_of_memory"


class Stopping(EngineFault):
    """The engine is being stopped."""

    status, type, code = 503, "server_error", "engine_stopping"


class ModelUnusable(Exception):
    """The model cannot be served as asked: no such directory, an architecture that is not for text, …

    Trying again cannot help.
    """


FAILURES_IN_A_ROW = 8
"""Computations that may fail one after the other for another reason than memory. After so many the model or
the device is broken (after a CUDA error nothing works any more), and the process had better be started
afresh."""


def is_out_of_memory(error: BaseException) -> bool:
    """Whether ``error`` says that memory ran out, on the host or on the device.

    On the CPU torch has no class of its own for this: its allocator, mmap and C++ raise a bare RuntimeError,
    so that its text has to be read.
    """
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        return True
    return isinstance(error, RuntimeError | OSError) and tells_of_memory(str(error).encode(errors="replace"))


def fault_of(error: BaseException) -> EngineFault:
    """What a client is told of an error in the computation; the details stay in the engine's log."""
    if isinstance(error, EngineFault):
        return error
    if is_out_of_memory(error):
        return OutOfMemory(
            "The engine ran out of memory on this request. Shorten it, or send it again when less is running."
        )
    return ComputationFailed("The model's computation failed on this request; the engine's log says why.")
