"""Carries out what the scheduler decided: requests wait, are bound late, go out as streams and come back.

Everything belongs to the event loop's thread. The deciding is in ``queue`` and ``scheduling``; this file acts.
"""

from dataclasses import dataclass

from gateway.domain import Request
from gateway.metrics import Metrics
from gateway.registry import Registry
from gateway.timers import Timers
from shared.messages import Headers, Trailers


@dataclass(frozen=True, slots=True)
class QueueSettings:
    """Bounds of the waiting room."""

    max_requests: int = 1000
    """Requests that may wait for one model."""
    max_requests_total: int = 10_000
    max_body_bytes: int = 256 * 1024 * 1024
    """Body bytes that all waiting requests together may hold in memory."""
    max_wait_s: float = 60.0
    """A request predicted to wait longer is refused at once; one that did wait as long gets QueueTimeout."""


@dataclass(frozen=True, slots=True)
class DispatchSettings:
    """Time budgets and attempts."""

    max_attempts: int = 3
    first_byte_s: float = 600.0
    """From the stream's opening to the response's head. Unary answers have no head before they are done."""
    idle_s: float = 300.0
    """Longest silence in the middle of a response whose reader keeps up."""
    total_s: float = 3600.0
    """From the stream's opening to the response's end."""
    reconnect_grace_s: float = 5.0
    """How long requests are held for a model whose last deployment went away (agents redial at once)."""


class EngineResponse:
    """One response, whatever number of attempts it took. Made by :meth:`Dispatcher.run`.

    Its reader must call :meth:`abort` whenever it stops before the end (``finally:`` is a good place; after the
    end it does nothing), and :meth:`consumed` for what the client's socket took: that is what lets the engine
    go on sending.
    """

    status: int
    headers: Headers
    agent: str
    deployment: str
    """The deployment's key, ``agent/id``."""
    queue_s: float
    """Seconds spent waiting for a slot, all attempts together."""
    attempts: int
    """How many deployments were asked, 1 when all went well."""
    trailers: Trailers | None
    """What the agent reports after the end; None before it, and when the agent had nothing to say."""

    async def next_chunks(self) -> list[bytes]:
        """Every chunk that has arrived since the last call, waiting for at least one.

        An empty list says the response ended in order. Chunks are never empty. Raises
        :class:`~gateway.errors.StreamBroken` when the response cannot be finished; whatever came before the
        break is returned first. One reader at a time. Cancelling the call loses nothing.
        """
        raise NotImplementedError

    def consumed(self, size_bytes: int) -> None:
        """The client's socket took this many bytes; the engine may send as many more. Safe after the end."""
        raise NotImplementedError

    def abort(self) -> None:
        """Nobody reads on: reset the stream (CANCELLED), drop what is buffered. Idempotent, safe after the end.

        The deployment's slot is free once the agent has confirmed that the engine let go.
        """
        raise NotImplementedError


class Dispatcher:
    """Takes classified requests, gives engine responses."""

    def __init__(
        self,
        registry: Registry,
        metrics: Metrics,
        timers: Timers,
        *,
        queue: QueueSettings = QueueSettings(),
        settings: DispatchSettings = DispatchSettings(),
        policy: str = "least-outstanding",
    ) -> None:
        """``timers`` is the running event loop; ``policy`` a name of ``gateway.scheduling.POLICIES``."""
        raise NotImplementedError

    async def run(self, request: Request) -> EngineResponse:
        """Wait for a slot, open a stream, upload the body beside it; returns when the response's head is there.

        Raises ModelNotFound, NoDeployment, BadRequest (no deployment of the model does this route), QueueFull,
        QueueTimeout, DeadlineExceeded, EngineError, ShuttingDown (all :mod:`gateway.errors`), and whatever
        RequestError ``request.body.rest`` raises. Cancelling the awaiting task releases everything: the place
        in the queue, the stream, the upload.
        """
        raise NotImplementedError

    @property
    def open_exchanges(self) -> int:
        """Requests waiting, running or not yet confirmed as let go by their agent. Zero when all is quiet."""
        raise NotImplementedError

    def stop_accepting(self) -> None:
        """From now on :meth:`run` raises ShuttingDown; what waits or runs goes on."""
        raise NotImplementedError

    async def wait_idle(self) -> None:
        """Returns once no exchange is open. Put a timeout around it."""
        raise NotImplementedError

    async def close(self) -> None:
        """Fail what waits (ShuttingDown), reset what runs (StreamBroken for its reader), end every upload."""
        raise NotImplementedError
