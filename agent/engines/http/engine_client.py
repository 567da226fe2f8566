"""HTTP to one engine: requests that stream both ways, and small questions."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import orjson

from agent.engines.backend import (
    BackendBody,
    BackendFailed,
    BackendRequest,
    BackendTimeout,
    ResponseReceiver,
    WholeBody,
)
from agent.engines.http.client.call import EngineCall
from agent.engines.http.client.connections import ConnectionPool, EngineConnector
from agent.engines.http.client.upload import NoBody
from agent.engines.http.realtime.websocket import RealtimeWebSocket
from agent.engines.http.websocket import EngineWebSocket
from agent.engines.settings import EngineSettings, base_url
from agent.engines.wire import RequestFormat
from shared.protocol.messages import Headers, RequestHead
from shared.protocol.progress import Progress

PROBE_BYTES = 4 * 1024 * 1024
"""Longest answer to a question that is read: the metrics of a big engine are below 1 MiB."""

JSON_BYTES = 1024 * 1024
JSON_VALUES = 16 * 1024
JSON_COMMAS = 2 * JSON_VALUES
"""Of JSON no more is parsed, counted as objects and lists, and as commas: parsing stops the event loop, for
about 5 ms with so many. vLLM's description of its paths, the longest answer, has about half."""


@dataclass(frozen=True, slots=True)
class SmallResponse:
    """A small answer, read whole."""

    status: int
    body: bytes

    @property
    def is_too_much(self) -> bool:
        """It is longer than JSON is read."""
        body = self.body
        return len(body) > JSON_BYTES or (
            len(body) > JSON_VALUES
            and (body.count(b"{") + body.count(b"[") > JSON_VALUES or body.count(b",") > JSON_COMMAS)
        )

    def json(self) -> Any:
        """The body as JSON, or None when it is none, or is too much."""
        if self.is_too_much:
            return None
        try:
            return orjson.loads(self.body)
        except orjson.JSONDecodeError:
            return None


class EngineClient:
    """Connections to the one engine of ``settings``. Made and closed inside an event loop."""

    def __init__(self, settings: EngineSettings) -> None:
        self._timeouts = settings.timeouts
        base = base_url(settings.url)
        self._form = RequestFormat(base, settings.api_key)
        self._connector = EngineConnector(base, settings.unix_socket, settings.timeouts.connect_s)
        self._pool = ConnectionPool(self._connector)
        self._questions = ConnectionPool(self._connector)
        """Apart, so that it shows whether requests go on while questions are answered."""

    async def close(self) -> None:
        await self._pool.close()
        await self._questions.close()

    @property
    def heard_s(self) -> float:
        """When something of an answer came last, on the loop's clock; 0 if none ever did."""
        return max(self._pool.heard_s, self._questions.heard_s)

    @property
    def worked_s(self) -> float:
        """The same of requests, without questions."""
        return self._pool.heard_s

    @property
    def running(self) -> int:
        """Requests that the engine has; no questions and no WebSockets."""
        return self._pool.busy

    def fail_all(self, error: Exception) -> None:
        """End the requests that the engine has with ``error``; WebSockets end when the engine does."""
        self._pool.fail_all(error)

    def request(
        self,
        head: RequestHead,
        body: BackendBody,
        receiver: ResponseReceiver,
        on_end: Callable[[Exception | None], None] | None = None,
        after: Callable[[], Awaitable[object]] | None = None,
        *,
        realtime: bool = False,
    ) -> BackendRequest:
        """See :meth:`agent.engines.backend.Backend.request`, and :class:`EngineCall` for ``on_end``.

        The request is sent ``after`` something else where that is given. ``realtime``: the client of a
        WebSocket speaks OpenAI's realtime events, and the engine vLLM's. Raises :class:`RequestUnfit`.
        """
        if head.upgrade:
            connector, made = self._connector, RealtimeWebSocket if realtime else EngineWebSocket
            return made(connector, self._form, self._timeouts, head, body, receiver, on_end)
        call = EngineCall(self._pool, self._form, self._timeouts, head, body, receiver, on_end)
        call.begin(after)
        return call

    async def ask(
        self, path: str, method: str = "GET", body: bytes = b"", within_s: float | None = None
    ) -> SmallResponse:
        """Ask for ``path`` and read the answer whole, ``within_s`` (default: that of questions). ``body`` is
        JSON. Raises the :class:`BackendError` that fits."""
        answer = _WholeAnswer(asyncio.get_running_loop().create_future())
        fields = (("content-type", "application/json"), ("content-length", str(len(body)))) if body else ()
        head = RequestHead("", method, path, fields, "", "")
        whole = WholeBody(body) if body else NoBody()
        call = EngineCall(self._questions, self._form, self._timeouts, head, whole, answer, None)
        call.begin()
        try:
            async with asyncio.timeout(self._timeouts.probe_s if within_s is None else within_s):
                await answer.over
        except TimeoutError:
            raise BackendTimeout("the engine fell silent before its answer") from None
        finally:
            call.let_go()
        if answer.error is not None:
            raise answer.error
        return SmallResponse(answer.status, bytes(answer.body))


class _WholeAnswer:
    """Implements :class:`agent.engines.backend.ResponseReceiver`."""

    tells_progress = False

    def __init__(self, over: asyncio.Future[None]) -> None:
        self.over = over
        self.status = 0
        self.body = bytearray()
        self.error: Exception | None = None

    def on_response(self, status: int, headers: Headers, *, whole: bool = False) -> None:
        self.status = status

    def on_progress(self, progress: Progress) -> None:
        pass

    def on_body(self, piece: bytes) -> bool:
        if len(self.body) + len(piece) > PROBE_BYTES:
            raise BackendFailed(f"the engine's answer is longer than {PROBE_BYTES} bytes")
        self.body += piece
        return True

    def on_over(self, error: Exception | None) -> None:
        self.error = error
        if not self.over.done():
            self.over.set_result(None)
