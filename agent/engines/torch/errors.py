"""What can go wrong with a request in the engine process, beside the errors that the gateway has as well."""

from agent.engines.memory_errors import tells_of_memory
from shared.process.request_errors import BadRequest, RequestError


class InvalidRequest(BadRequest):
    code = "invalid_value"


class ComputationFailed(RequestError):
    """The model's computation raised; the process goes on."""

    status, type, code = 500, "server_error", "computation_failed"


class OutOfMemory(RequestError):
    """There was not enough memory for this request; the process goes on."""

    status, type, code = 503, "server_error", "out_of_memory"


class GrammarFailed(RequestError):
    """The answer's grammar became too complex on the way."""

    status, type, code = 500, "server_error", "grammar_failed"


class Stopping(RequestError):
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


def request_error(error: BaseException) -> RequestError:
    """What a client is told of an error in the computation; the details stay in the engine's log."""
    if isinstance(error, RequestError):
        return error
    if is_out_of_memory(error):
        return OutOfMemory(
            "The engine ran out of memory on this request. Shorten it, or send it again when less is running."
        )
    return ComputationFailed("The model's computation failed on this request; the engine's log says why.")


def retry_headers(error: RequestError) -> dict[str, str]:
    """When the client may come back, in seconds and in milliseconds."""
    if error.retry_after_s is None:
        return {}
    return {
        "retry-after": str(max(1, round(error.retry_after_s))),
        "retry-after-ms": str(max(1, round(error.retry_after_s * 1000))),
    }
