"""What the agent asks of every kind of engine, and the ways an engine can fail."""

from collections.abc import Callable
from typing import Protocol, runtime_checkable

from shared.protocol.engine_state import EngineState
from shared.protocol.errors import ErrorCode, TrunklineError
from shared.protocol.messages import DeploymentState, Headers, RequestHead
from shared.protocol.progress import Progress
from shared.speedups import OutPath

LOADING = "the model is being loaded"
UNLOADING = "the model is being unloaded"


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


class WholeBody:
    """A short :class:`BackendBody` that is there."""

    def __init__(self, body: bytes) -> None:
        self._body = body

    @property
    def ended(self) -> bool:
        return not self._body

    def take(self) -> bytes:
        body, self._body = self._body, b""
        return body

    def taken(self, size_bytes: int) -> None: ...
    async def more(self) -> None: ...


async def read_whole(body: BackendBody, most_bytes: int) -> bytes | None:
    """All of ``body``; None as soon as it is known to have more than ``most_bytes``."""
    pieces: list[bytes] = []
    size_bytes = 0
    while not body.ended:
        await body.more()
        piece = body.take()
        body.taken(len(piece))
        pieces.append(piece)
        size_bytes += len(piece)
        if size_bytes > most_bytes:
            return None
    return b"".join(pieces)


class ResponseReceiver(Protocol):
    """Is told of an engine's response, in the very turn of the event loop that read it.

    What :meth:`on_response` or :meth:`on_body` raise ends the request, and is the error of :meth:`on_over`.
    """

    def on_response(self, status: int, headers: Headers, *, whole: bool = False) -> OutPath | None:
        """The response begins: its HTTP status, 200 to 599, and its header fields: lower-case names,
        hop-by-hop fields removed, order kept. Status 101, where the request asked for a WebSocket: both
        bodies are messages from now on (:mod:`shared.protocol.upgraded`). ``whole``: all of it is there, and
        what there is of a body and :meth:`on_over` follow before anything else happens.

        Pieces of the body may go to :meth:`on_body` or, where this gives a path that takes them, there."""

    def on_body(self, piece: bytes) -> bool:
        """The next piece of the body, of whatever size. False: no more is wanted until
        :meth:`BackendRequest.resume`, and the engine's connection is not read meanwhile (back-pressure)."""

    @property
    def tells_progress(self) -> bool:
        """The gateway hears of :meth:`on_progress`."""

    def on_progress(self, progress: Progress) -> None:
        """How far the engine has come (:func:`shared.protocol.progress.progress` makes one of what it says).
        May be called at any time before the last call, as often as there is something new: what the gateway
        hears of it is the newest, twenty times a second at most. Must not raise."""

    def on_over(self, error: Exception | None) -> None:
        """The response was whole, or failed: with the :class:`BackendError` that fits, or with what the
        receiver raised. The last call, made once unless the request is let go before. The engine has let go
        of the request. Must not raise."""


class BackendRequest(Protocol):
    """A request that an engine has."""

    def resume(self) -> None:
        """The receiver wants more of the body. Harmless when it never said otherwise."""

    def let_go(self) -> None:
        """The rest of the response is not wanted: the engine's connection is closed, and the engine stops
        working. The receiver hears no more. Harmless when the request is over."""


@runtime_checkable
class ModelLoader(Protocol):
    """A backend whose engine loads and unloads each of its models by itself."""

    def load_model(self, deployment_id: str) -> None:
        """Have it loaded, without waiting for it. Raises :class:`BackendRefused`."""

    def unload_model(self, deployment_id: str) -> None:
        """Have it unloaded, without waiting for it. Raises :class:`BackendRefused`."""


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

    def request(self, head: RequestHead, body: BackendBody, receiver: ResponseReceiver) -> BackendRequest:
        """Send a request, whose response goes to ``receiver``; what comes at once comes before this returns.

        Raises :class:`BackendUnreachable` or :class:`BackendRefused` for what is not sent; then the receiver
        hears nothing. Otherwise it hears of these and of :class:`BackendFailed` and :class:`BackendTimeout`.
        """
