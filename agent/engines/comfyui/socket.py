"""The connection to a ComfyUI server's ``/ws``, on which it tells how far its prompts are.

ComfyUI tells of a prompt to the client id that the prompt was sent with, and to the connection that said this
id last. When an older connection with the same id ends later, ComfyUI forgets the newer one, which then stays
open and silent. So a connection is closed in order before the next is made, and one that is silent about a
prompt that runs is made anew (:meth:`EventSocket.distrust`).
"""

import asyncio
import logging
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, Protocol
from urllib.parse import quote

import orjson
import structlog
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, WebSocketException

log = structlog.get_logger("agent.engine")

MESSAGE_BYTES = 16 * 1024 * 1024
"""Longest message that is read; with a longer one the connection ends, and is made anew."""
TEXT_BYTES = 1024 * 1024
"""Longest message of text that is parsed."""
TURN_MESSAGES = 32
"""After so many messages in a row the event loop turns to something else."""
PING_S = 20.0
OPEN_S = 5.0
CLOSE_S = 2.0
REST_S = (0.2, 0.5, 1.0, 2.0, 5.0)
"""Between attempts to connect."""
DISTRUST_S = 10.0
"""The connection is not made anew more often."""

_quiet = logging.getLogger("websockets.comfyui")
_quiet.setLevel(logging.CRITICAL)


class PromptListener(Protocol):
    """Is told of one prompt. Must not raise."""

    def on_event(self, kind: str, data: Mapping[str, Any], message: str) -> None:
        """A message of text: its type, its data, and the message itself."""

    def on_preview(self, message: bytes) -> None:
        """A binary message."""


class EventSocket:
    """Connected from the first prompt on, until it is closed. Belongs to one event loop."""

    def __init__(self, base_url: str, client_id: str, api_key: str | None, engine: str) -> None:
        self.client_id = client_id
        self._url = f"ws{base_url.removeprefix('http')}/ws?clientId={quote(client_id, safe='')}"
        self._headers = {} if api_key is None else {"authorization": f"Bearer {api_key}"}
        self._engine = engine
        self._listeners: dict[str, PromptListener] = {}
        self._task: asyncio.Task[None] | None = None
        self._socket: ClientConnection | None = None
        self._closing: asyncio.Task[None] | None = None
        """Closes the connection that is not trusted."""
        self._open = asyncio.Event()
        self._running = ""
        """The prompt that the server said it runs."""
        self._distrusted_s = float("-inf")
        self.on_status: Callable[[int], None] = lambda remaining: None
        """Called with how many prompts the server has."""

    async def ready(self, within_s: float) -> None:
        """Begin to connect, and wait for it so long; prompts run without it, too."""
        if self._task is None:
            self._task = asyncio.create_task(self._run(), name=f"events of {self._engine}")
        with suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                await self._open.wait()

    async def close(self) -> None:
        tasks = [task for task in (self._task, self._closing) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def listen(self, prompt_id: str, listener: PromptListener) -> None:
        """Tell ``listener`` of the prompt, until :meth:`leave`."""
        self._listeners[prompt_id] = listener

    def leave(self, prompt_id: str) -> None:
        self._listeners.pop(prompt_id, None)

    def distrust(self) -> None:
        """The server did something that it should have told of here: connect anew."""
        now, socket = asyncio.get_running_loop().time(), self._socket
        if socket is None or now - self._distrusted_s < DISTRUST_S:
            return
        self._distrusted_s = now
        log.info("the engine is silent on its socket, which is made anew", engine=self._engine)
        self._closing = asyncio.create_task(socket.close())

    async def _run(self) -> None:
        failures = 0
        while True:
            try:
                async with connect(
                    self._url,
                    additional_headers=self._headers,
                    open_timeout=OPEN_S,
                    close_timeout=CLOSE_S,
                    ping_interval=PING_S,
                    ping_timeout=PING_S,
                    max_size=MESSAGE_BYTES,
                    max_queue=16,
                    compression=None,
                    proxy=None,
                    logger=_quiet,
                ) as socket:
                    self._socket, failures = socket, 0
                    self._open.set()
                    await self._read(socket)
            except (OSError, TimeoutError, WebSocketException):
                failures += 1
            finally:
                self._socket = None
                self._open.clear()
            await asyncio.sleep(REST_S[min(failures, len(REST_S) - 1)])

    async def _read(self, socket: ClientConnection) -> None:
        read = 0
        with suppress(ConnectionClosed):
            while True:
                self._take(await socket.recv())
                read += 1
                if read % TURN_MESSAGES == 0:
                    await asyncio.sleep(0)

    def _take(self, message: str | bytes) -> None:
        if isinstance(message, bytes):
            if (listener := self._listeners.get(self._running)) is not None:
                listener.on_preview(message)
            return
        said = _parsed(message)
        kind, data = said.get("type"), said.get("data")
        if not isinstance(kind, str) or not isinstance(data, dict):
            return
        if kind == "status":
            self._status(data)
        prompt_id = data.get("prompt_id")
        if not isinstance(prompt_id, str):
            return
        if kind in ("execution_start", "executing"):
            self._running = prompt_id
        if (listener := self._listeners.get(prompt_id)) is not None:
            listener.on_event(kind, data, message)

    def _status(self, data: Mapping[str, Any]) -> None:
        status = data.get("status")
        info = status.get("exec_info") if isinstance(status, dict) else None
        remaining = info.get("queue_remaining") if isinstance(info, dict) else None
        if isinstance(remaining, int):
            self.on_status(remaining)


def _parsed(message: str) -> dict[str, Any]:
    if len(message) > TEXT_BYTES:
        return {}
    try:
        value = orjson.loads(message)
    except orjson.JSONDecodeError:
        return {}
    return value if isinstance(value, dict) else {}
