"""What the agent asks of every kind of engine, and the ways an engine can fail."""

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Protocol

from shared.protocol.engine_state import EngineState
from shared.protocol.errors import ErrorCode, TrunklineError
from shared.protocol.messages import DeploymentState, Headers, RequestHead


class BackendError(TrunklineError):
    """The engine did not answer in order. An answer of 4xx or 5xx is an answer, not this."""

    code = ErrorCode.ENGINE_FAILED

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class BackendUnreachable(BackendError):
    """No connection to the engine. It never saw the request."""

    code = ErrorCode.ENGINE_UNREACHABLE


class BackendRefused(BackendError):
    """The backend does not send it now; another one may."""

    code = ErrorCode.REFUSED


class RequestUnfit(BackendRefused):
    """No engine is sent such a request, so it says nothing about this engine and is not tried at another."""

    code = ErrorCode.PROTOCOL_ERROR


class BackendFailed(BackendError):
    """The engine closed the connection before its answer was whole, or what it sent is no HTTP."""

    code = ErrorCode.ENGINE_FAILED


class BackendTimeout(BackendError):
    """The engine was silent for longer than its settings allow."""

    code = ErrorCode.ENGINE_TIMEOUT


class BackendBusy(BackendError):
    """The engine was not asked for its state because it works on requests, or did not answer for that
    reason."""

    code = ErrorCode.REFUSED


class BackendBody(Protocol):
    """A request's body on its way to the engine."""

    @property
    def ended(self) -> bool:
        """All of the body has been taken, and known to be all."""

    def take(self) -> bytes:
        """What has come and was not taken before; perhaps nothing."""

    def taken(self, size_bytes: int) -> None:
        """The engine's socket took so many bytes: as many more may come."""

    async def more(self) -> None:
        """Waits until there is something to take, or nothing more will come."""


class BackendResponse(Protocol):
    """An engine's answer, of which so far only the head has been read."""

    @property
    def status(self) -> int:
        """The HTTP status, 200 to 599."""

    @property
    def headers(self) -> Headers:
        """Lower-case names, hop-by-hop headers removed, order kept."""

    async def pour(self, take: Callable[[bytes], bool]) -> None:
        """Gives the body to ``take``, in pieces of whatever size; returns when it was whole. Once.

        ``take`` is called in the very turn of the event loop that read the piece. It says whether it wants
        more: if not, the engine's connection is not read until :meth:`resume` (back-pressure). What it raises
        ends the request, and is raised here. Raises :class:`BackendFailed` when the body ends early and
        :class:`BackendTimeout` when it stalls.
        """

    def resume(self) -> None:
        """``take`` wants more. Harmless when it never said otherwise."""


class Backend(Protocol):
    """One engine. Everything belongs to one event loop."""

    name: str
    """Unique within the agent; the first part of its deployments' ids (``name/model``)."""

    async def start(self) -> None:
        """Begin to watch the engine. Returns at once or after a first look; never fails because the
        engine is not there (its deployments are then absent or FAILED)."""

    async def close(self) -> None:
        """Stop watching and let go of the engine. Requests still running are cut off."""

    def deployments(self) -> tuple[DeploymentState, ...]:
        """What is so now, from memory. ``slots`` is what the engine can take in all."""

    def engine(self) -> EngineState:
        """What is so now of the engine as a whole, also while there are no deployments; from memory."""

    def subscribe(self, on_change: Callable[[], None]) -> None:
        """Call ``on_change`` after each change of ``deployments()``, or of why ``engine()`` is failed. One
        subscriber: the last."""

    def request(self, head: RequestHead, body: BackendBody) -> AbstractAsyncContextManager[BackendResponse]:
        """Send a request; entering gives the response once its head has been read.

        Leaving lets go
        of the engine: if the answer was not whole, its connection is closed, and the engine stops working.
        Entering raises :class:`BackendUnreachable` (never sent), :class:`BackendRefused` (never sent),
        :class:`BackendFailed` or :class:`BackendTimeout`.
        """
