"""A ComfyUI server's own paths, for clients of ComfyUI: ``/engines/{engine}/prompt``, ``/history``, ``/ws``.

They are an engine of their own beside the one for prompts, with many slots: whoever looks at the history, or
waits at ``/ws``, holds up no prompt. A client's ``/ws`` is not connected to the server. It is told of the
prompts that were sent with its client id, by what the agent hears of them, so a client that does not read
delays nobody.
"""

import asyncio
from collections import defaultdict, deque
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from urllib.parse import parse_qs

import orjson

from agent.engines.backend import BackendBody, BackendRequest, ResponseReceiver
from agent.engines.comfyui.backend import PROMPT_PATHS, ComfyUIBackend
from agent.engines.comfyui.engine import PromptFollower
from agent.engines.comfyui.requests import AskedPrompt
from agent.engines.http.kind import COMFYUI_PATHS, EngineKind
from agent.engines.http.models import EngineModel
from agent.engines.http.openai import OpenAIHTTPBackend
from agent.engines.http.probe import Lister, NoModelList
from agent.engines.settings import EngineSettings
from shared.protocol.errors import PieceMalformed
from shared.protocol.messages import UPGRADED, DeploymentState, RequestHead
from shared.protocol.routes import PATHS, Route, need_of
from shared.protocol.upgraded import NO_CODE, PieceKind, PieceReader, encode_close, encode_pieces, may_be_sent

QUEUED = 1024
"""Messages that wait for a client; when there are more, it is closed with code 1013."""
PASSING = 64
"""While so many wait, progress and previews are left out."""
TRY_LATER = 1013

_SOCKETS = frozenset(("/ws", "/api/ws"))
_STATS = "/system_stats"
_IMAGES = tuple(need_of(route, path) for path, route in PATHS.items() if route == Route.IMAGES)
"""What is lacked, so that these deployments take the engine's own paths and nothing else."""
_PASSING = ('{"type": "progress', '{"type":"progress')

OnEnd = Callable[[Exception | None], None]


class ComfyUIPaths(OpenAIHTTPBackend):
    """Implements :class:`agent.engines.backend.Backend`. Its one model is called as the engine of
    ``prompts``, where the prompts among its requests go."""

    listed_kind: EngineKind = COMFYUI_PATHS

    def __init__(self, settings: EngineSettings, prompts: ComfyUIBackend) -> None:
        self._prompts = prompts
        self._model = settings.name
        self._clients: defaultdict[str, set[PromptSocket]] = defaultdict(set)
        super().__init__(replace(settings, name=f"{settings.name}.paths", slots=None, models=()))
        prompts.follow_prompts(self._note_prompt, self._tell_status)

    def _lister(self) -> Lister:
        async def listed() -> tuple[EngineModel, ...]:
            answer = await self._ask(_STATS)
            if answer.status != 200:
                raise NoModelList(answer, why=f"the server is no ComfyUI ({_STATS} answers {answer.status})")
            return (EngineModel(self._model, routes=(Route.ANY.value, Route.IMAGES.value)),)

        return listed

    def deployments(self) -> tuple[DeploymentState, ...]:
        return tuple(replace(state, lacks=_IMAGES) for state in super().deployments())

    async def close(self) -> None:
        for sockets in tuple(self._clients.values()):
            for socket in tuple(sockets):
                socket.let_go()
        await super().close()

    def request(self, head: RequestHead, body: BackendBody, receiver: ResponseReceiver) -> BackendRequest:
        """See :meth:`agent.engines.backend.Backend.request`."""
        path, _, query = head.path.partition("?")
        if head.upgrade and path in _SOCKETS:
            return self._socket(parse_qs(query).get("clientId", [""])[0], body, receiver)
        if head.method == "POST" and path in PROMPT_PATHS:  # of a gateway that does not tell prompts apart
            return self._prompts.request(head, body, receiver)
        return self._send(head, body, receiver)

    def _socket(self, client_id: str, body: BackendBody, receiver: ResponseReceiver) -> BackendRequest:
        sockets = self._clients[client_id]
        self._began()

        def on_end(error: Exception | None) -> None:
            sockets.discard(socket)
            if not sockets:
                self._clients.pop(client_id, None)
            self._request_over(error)

        socket = PromptSocket(body, receiver, on_end)
        sockets.add(socket)
        socket.say(_status(self._prompts.remaining, client_id))
        return socket

    def _note_prompt(self, prompt_id: str, asked: AskedPrompt, follower: PromptFollower) -> None:
        if asked.client_id:
            follower.on_message = partial(self._tell, asked.client_id)

    def _tell(self, client_id: str, message: str | bytes) -> None:
        for socket in tuple(self._clients.get(client_id, ())):
            socket.say(message)

    def _tell_status(self, remaining: int) -> None:
        message = _status(remaining)
        for sockets in tuple(self._clients.values()):
            for socket in tuple(sockets):
                socket.say(message)


class PromptSocket:
    """A client's ``/ws``. Implements :class:`agent.engines.backend.BackendRequest`. What the client says is
    read and means nothing here."""

    def __init__(self, body: BackendBody, receiver: ResponseReceiver, on_end: OnEnd) -> None:
        self._body = body
        self._receiver = receiver
        self._on_end = on_end
        self._queue: deque[bytes] = deque()
        """Pieces of messages, whole ones."""
        self._filled = asyncio.Event()
        self._wanted = asyncio.Event()
        self._wanted.set()
        self._over = False
        self._closing = False
        loop = asyncio.get_running_loop()
        self._writer = loop.create_task(self._write())
        self._reader = loop.create_task(self._read())

    def resume(self) -> None:
        self._wanted.set()

    def let_go(self) -> None:
        self._finish(None, told=False)

    def say(self, message: str | bytes) -> None:
        """Have the client told, when it reads."""
        waiting = len(self._queue)
        is_text = isinstance(message, str)
        passing = not is_text or message.startswith(_PASSING)  # type: ignore[arg-type]
        if self._over or self._closing or (passing and waiting >= PASSING):
            return
        if waiting >= QUEUED:
            self._close(TRY_LATER, "the client does not read")
        else:
            data = message.encode() if isinstance(message, str) else message
            kind = PieceKind.TEXT if is_text else PieceKind.BINARY
            self._queue.append(b"".join(encode_pieces(kind, data, final=True)))
            self._filled.set()

    def _close(self, code: int, reason: str = "") -> None:
        """The client is told nothing after what waits for it, and then that it is closed."""
        self._closing = True
        self._queue.append(encode_close(code, reason))
        self._filled.set()

    async def _write(self) -> None:
        try:
            self._receiver.on_response(UPGRADED, ())
            while not (self._closing and not self._queue):
                await self._filled.wait()
                self._filled.clear()
                while self._queue:
                    await self._wanted.wait()
                    if not self._receiver.on_body(self._queue.popleft()):
                        self._wanted.clear()
        except Exception as error:
            self._finish(error)
        else:
            self._finish(None)

    async def _read(self) -> None:
        reader, body = PieceReader(), self._body
        try:
            while not body.ended and reader.closed is None:
                await body.more()
                data = body.take()
                reader.feed(data)
                body.taken(len(data))
        except PieceMalformed:
            self._finish(None)
        except Exception as error:
            self._finish(error)
        else:
            self._queue.clear()
            code = reader.end().code
            self._close(code if may_be_sent(code) else NO_CODE)

    def _finish(self, error: Exception | None, *, told: bool = True) -> None:
        if self._over:
            return
        self._over = True
        current = asyncio.current_task()
        for task in (self._writer, self._reader):
            if task is not current:
                task.cancel()
        self._on_end(error)
        if told:
            self._receiver.on_over(error)


def _status(remaining: int, client_id: str = "") -> str:
    """ComfyUI's message of how many prompts it has."""
    data = {"status": {"exec_info": {"queue_remaining": remaining}}} | (
        {"sid": client_id} if client_id else {}
    )
    return orjson.dumps({"type": "status", "data": data}).decode()
