"""The server process's HTTP surface: the model's routes, and what an agent asks of any engine."""

import asyncio
import hmac
import logging
import os
from collections.abc import Mapping
from contextlib import suppress
from typing import Any
from urllib.parse import unquote

import orjson
from starlette.types import Receive, Scope, Send

from agent.engines.torch.errors import request_error, retry_headers
from agent.serve.call import EncodedAnswer, ModelCall
from agent.serve.messages import ModelFacts
from agent.serve.metrics import CONTENT_TYPE, ModelMetrics
from agent.serve.parcels import INLINE_BYTES, Parcel, ParcelWriter
from agent.serve.server import ModelServer
from shared.process.request_errors import (
    BodyTooLarge,
    MethodNotAllowed,
    RequestError,
    RouteNotFound,
    Unauthenticated,
)

_log = logging.getLogger("engine")

OWNER = "trunkline-python"
"""As ``owned_by``; an agent knows the kind of engine by it."""

MODEL_HEADER = "x-model"
"""Which of a model's names the client asked for; the agent sets it."""

TAG_HEADER = "x-trunkline-call"
"""What progress is told by; the agent sets it."""

_JSON = "application/json"
_EVENTS = (
    ("content-type", "text/event-stream; charset=utf-8"),
    ("cache-control", "no-cache"),
    ("x-accel-buffering", "no"),
)
_STREAM_END = b"data: [DONE]\n\n"


class _ClientGone(Exception):
    """The client closed its connection; there is nobody to answer."""


class ModelHTTP:
    """An ASGI application over one :class:`ModelServer`, which has been started."""

    def __init__(self, server: ModelServer, key: str | None) -> None:
        assert server.facts is not None
        self._server = server
        self._facts: ModelFacts = server.facts
        self._key = None if key is None else f"Bearer {key}".encode()
        self._writer = ParcelWriter(server.scratch.directory, "body")
        self.metrics = ModelMetrics(server)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path: str = scope["path"]
        try:
            self._authenticate(scope)
            if path in self._facts.paths:
                if scope["method"] != "POST":
                    raise MethodNotAllowed(f"{scope['method']} is not for this path.", ("POST",))
                await self._compute(scope, receive, send)
            elif scope["method"] not in ("GET", "HEAD"):
                raise RouteNotFound("This engine has no such path.")
            else:
                status, content_type, body = self._question(path)
                await _respond(send, status, ((("content-type"), content_type),), body)
        except _ClientGone:
            pass
        except Exception as error:
            await self._fail(send, error)

    # --- Questions about the engine

    def _question(self, path: str) -> tuple[int, str, bytes]:
        """Status, type and body of the answer."""
        if path == "/health":
            state = self._server.state()
            document: dict[str, Any] = {"status": state.status}
            document |= {"running": self._server.running, "waiting": self._server.waiting}
            if state.reason:
                document["reason"] = state.reason
            return (200 if state.status in ("READY", "BUSY") else 503), _JSON, orjson.dumps(document)
        if path == "/v1/models":
            listed = [self._model(name) for name in self._facts.names]
            return 200, _JSON, orjson.dumps({"object": "list", "data": listed})
        if path.startswith("/v1/models/") and (name := path.removeprefix("/v1/models/")) in self._facts.names:
            return 200, _JSON, orjson.dumps(self._model(name))
        if path == "/metrics":
            return 200, CONTENT_TYPE, self.metrics.text()
        if path == "/openapi.json":
            return 200, _JSON, orjson.dumps(openapi(self._facts))
        raise RouteNotFound("This engine has no such path.")

    def _model(self, name: str) -> dict[str, Any]:
        state = self._server.state()
        status = {"LOADING": "loading", "FAILED": "failed"}.get(state.status, "loaded")
        described = {"id": name, "object": "model", "owned_by": OWNER, "slots": self._server.slots}
        described["capabilities"] = self._facts.capabilities
        return described | {"status": status, "reason": state.reason}

    # --- Requests to the model

    async def _compute(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._server.check_ready()
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        began_s = asyncio.get_running_loop().time()
        with self._server.admission.enter():
            body = await self._body(receive, headers)
            call = ModelCall(self._server, headers.get(TAG_HEADER, ""))
            gone = asyncio.ensure_future(_disconnected(receive))
            try:
                answer = await _unless(gone, call.begin(*self._asked(scope, headers), body))
                if answer.streamed:
                    broken = await _unless(gone, _stream(call, answer, send))
                    if broken is not None:
                        self.metrics.failed(broken.code)
                        return
                else:
                    await _respond(send, answer.status, answer.headers, answer.body)
                self.metrics.finished(asyncio.get_running_loop().time() - began_s)
            finally:
                gone.cancel()
                call.close()
                self._server.scratch.remove(body)

    def _asked(self, scope: Scope, headers: Mapping[str, str]) -> tuple[str, str, str, dict[str, str], str]:
        names, asked = self._facts.names, unquote(headers.get(MODEL_HEADER, ""))
        model = asked if asked in names else names[0]
        query = scope["query_string"].decode("latin-1")
        return scope["path"], query, scope["method"], dict(headers), model

    async def _body(self, receive: Receive, headers: Mapping[str, str]) -> Parcel:
        """The request's body, in shared memory when it is long. Raises :class:`BodyTooLarge`."""
        most = self._facts.max_body_bytes
        if headers.get("content-length", "0").isdecimal() and int(headers.get("content-length", 0)) > most:
            raise BodyTooLarge(f"The body has more than {most} bytes.")
        spool = _BodySpool(self._writer, most)
        try:
            more = True
            while more:
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise _ClientGone
                spool.write(message.get("body", b""))
                more = message.get("more_body", False)
            return spool.parcel()
        except BaseException:
            spool.discard()
            raise

    def _authenticate(self, scope: Scope) -> None:
        if self._key is None:
            return
        presented = next((value for name, value in scope["headers"] if name == b"authorization"), b"")
        if not hmac.compare_digest(presented, self._key):
            raise Unauthenticated("This engine wants its key as a bearer token.")

    async def _fail(self, send: Send, error: Exception) -> None:
        refusal = request_error(error)
        if not isinstance(error, RequestError):
            _log.error("a request failed", exc_info=error)
        self.metrics.failed(refusal.code)
        headers = {"content-type": _JSON, **retry_headers(refusal)}
        with suppress(RuntimeError):  # the response has begun, and is visibly cut off
            await _respond(send, refusal.status, tuple(headers.items()), orjson.dumps(refusal.openai_body()))


class _BodySpool:
    """Takes a body piece by piece; from :data:`INLINE_BYTES` on into a file, so that no turn of the event
    loop takes longer for a long one. While the memory file system is full, a body is kept here."""

    def __init__(self, writer: ParcelWriter, most_bytes: int) -> None:
        self._writer = writer
        self._most_bytes = most_bytes
        self._pieces: list[bytes] = []
        self._size_bytes = 0
        self._file = ""
        self._descriptor = -1
        self._spilled_bytes = 0
        """How much of it is in the file, without what is in ``_pieces``."""
        self._is_full = False
        """The memory file system took no more of it."""

    def write(self, piece: bytes) -> None:
        """Raises :class:`BodyTooLarge`."""
        self._size_bytes += len(piece)
        if self._size_bytes > self._most_bytes:
            raise BodyTooLarge(f"The body has more than {self._most_bytes} bytes.")
        self._pieces.append(piece)
        if self._size_bytes > INLINE_BYTES and not self._is_full:
            try:
                self._spill()
            except OSError:
                self._take_back()

    def parcel(self) -> Parcel:
        """All of it."""
        if self._descriptor < 0:
            return Parcel((self._size_bytes,), b"".join(self._pieces))
        os.ftruncate(self._descriptor, Parcel((self._size_bytes,)).size_bytes)
        os.close(self._descriptor)
        self._descriptor = -1
        return Parcel((self._size_bytes,), file=self._file)

    def discard(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
        if self._file:
            with suppress(OSError):
                os.unlink(self._file)

    def _take_back(self) -> None:
        """Read what the file has, and remove it. Raises OSError."""
        self._is_full = True
        if self._spilled_bytes:
            with open(self._file, "rb") as file:
                self._pieces.insert(0, file.read(self._spilled_bytes))
        self.discard()
        self._descriptor = -1

    def _spill(self) -> None:
        """Move what there is to the file. Raises OSError when the memory file system is full."""
        if self._descriptor < 0:
            self._file = self._writer.new_file()
            self._descriptor = os.open(self._file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        for piece in self._pieces:
            left = memoryview(piece)
            while left:
                left = left[os.write(self._descriptor, left) :]
        self._pieces.clear()
        self._spilled_bytes = self._size_bytes


async def _unless(gone: "asyncio.Future[None]", work: Any) -> Any:
    """The result of ``work``. Raises :class:`_ClientGone`, and cancels it, when the client disconnects."""
    task = asyncio.ensure_future(work)
    try:
        await asyncio.wait((task, gone), return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise _ClientGone
        return task.result()
    finally:
        if not task.done():
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _respond(send: Send, status: int, headers: tuple[tuple[str, str], ...], body: bytes) -> None:
    fields = [(name.encode("latin-1"), value.encode("latin-1", "replace")) for name, value in headers]
    fields.append((b"content-length", str(len(body)).encode()))
    await send({"type": "http.response.start", "status": status, "headers": fields})
    await send({"type": "http.response.body", "body": body})


async def _stream(call: ModelCall, answer: EncodedAnswer, send: Send) -> RequestError | None:
    """Send a stream to its end. An error, which is returned, breaks it off visibly: written into it, it would
    look like its end."""
    fields = [(name.encode(), value.encode()) for name, value in _EVENTS]
    await send({"type": "http.response.start", "status": 200, "headers": fields})
    piece: bytes | None = answer.body
    try:
        while piece is not None:
            if piece:
                await send({"type": "http.response.body", "body": piece, "more_body": True})
            piece = await call.next_piece()
    except RequestError as error:
        _log.warning("a stream was broken off (%s): %s", error.code, error.message)
        return error
    await send({"type": "http.response.body", "body": _STREAM_END})
    return None


def openapi(facts: ModelFacts) -> dict[str, Any]:
    """The paths of a model, for an agent that looks for them."""
    described = {"responses": {"200": {"description": "The model's answer."}}}
    return {
        "openapi": "3.1.0",
        "info": {"title": facts.names[0], "version": "1"},
        "paths": {path: {"post": described} for path in facts.paths},
    }
