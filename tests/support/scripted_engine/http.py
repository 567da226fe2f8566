"""The engine's HTTP side: one asyncio protocol per connection, a timer per token, no task per request."""

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, cast

import httptools
import orjson

from tests.support.scripted_engine import answers
from tests.support.scripted_engine.engine import ScriptedEngine
from tests.support.scripted_engine.planned import NotContinuable, plan
from tests.support.scripted_engine.script import Fault, Habit, Script, Trouble, prompt_of
from tests.support.scripted_engine.streamed_answer import StreamedAnswer
from tests.support.scripted_engine.streams import STREAMED
from tests.support.scripted_engine.upload import Upload
from tests.support.scripted_engine.videos import PATH as VIDEOS

_JSON = "application/json"
_TOKEN_BYTES = 4
"""What a prompt's token is taken to have."""

_owned: set[asyncio.Task[None]] = set()


def own(work: Coroutine[None, None, None]) -> None:
    """Run it beside the connection that asked for it."""
    task = asyncio.get_running_loop().create_task(work)
    _owned.add(task)
    task.add_done_callback(_owned.discard)


@dataclass(frozen=True, slots=True)
class Computing:
    """An answer in one piece that is being computed since ``began_s``."""

    tokens: int
    tokens_per_s: float
    began_s: float

    @property
    def lasts_s(self) -> float:
        return self.tokens / self.tokens_per_s if self.tokens_per_s > 0 else 0.0

    def done(self, now_s: float) -> int:
        """Tokens that there are by now."""
        return min(self.tokens, int((now_s - self.began_s) * self.tokens_per_s))


class EngineProtocol(asyncio.Protocol):
    """Reads requests one after the other and answers each as its script says."""

    def __init__(self, engine: ScriptedEngine, *, control: bool = False) -> None:
        """``control``: this is a connection for orders, which the engine's troubles leave alone."""
        self.engine = engine
        self._control = control
        self._waiting: Callable[[], None] | None = None
        self.loop = asyncio.get_running_loop()
        self.writable = True
        self.transport: asyncio.Transport
        self._parser = httptools.HttpRequestParser(self)
        self._answer: StreamedAnswer | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._running = False
        self._computing: Computing | None = None
        self._url = b""
        self._headers: dict[str, str] = {}
        self._upload = Upload("")

    # --- the connection

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.transport.set_write_buffer_limits(high=64 * 1024)
        if not self._control:
            self.engine.connected(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self.engine.disconnected(self)
        self._waiting = None
        if self._timer is not None:
            self._timer.cancel()
        if self._answer is not None:
            self._answer.stop()
        if self._computing is not None:
            self.engine.stats.computed_tokens += self._computing.done(self.loop.time())
            self._computing = None
        if self._running:
            self.engine.stats.cancelled += 1
            self._finish()
        self.engine.turns.leave(self)
        self._answer = None

    def pause_writing(self) -> None:
        self.writable = False

    def resume_writing(self) -> None:
        self.writable = True
        if self._answer is not None:
            self._answer.advance()

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError:
            self.transport.abort()

    def troubled(self, trouble: Trouble) -> None:
        """The engine's trouble is another now."""
        if trouble is Trouble.REFUSE:
            self.transport.abort()
        elif self._answer is not None:
            self._answer.advance()
        elif self._waiting is not None and trouble not in _KEEP_WAITING:
            respond, self._waiting = self._waiting, None
            respond()

    # --- the request

    def on_message_begin(self) -> None:
        self._url, self._headers = b"", {}

    def on_url(self, url: bytes) -> None:
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        self._upload = Upload(self._headers.get("content-type", ""))
        if self._headers.get("expect", "").lower() == "100-continue":
            self.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def on_body(self, body: bytes) -> None:
        self.engine.stats.received_bytes += len(body)
        self._upload.feed(body)

    def on_message_complete(self) -> None:
        method = self._parser.get_method().decode()
        path = self._url.decode("latin-1")
        self.engine.stats.requests.append(f"{method} {path}")
        if self.engine.trouble is Trouble.SILENT and not self._control:
            self._waiting = lambda: self._take(method, path)
        else:
            self._take(method, path)

    def _take(self, method: str, path: str) -> None:
        """Answer a request, now or when its time has come."""
        if not self._housekeeping(method, path):
            if Habit.INTERRUPTS in self.engine.habits:
                self._take_turn(lambda: self._begin(method, path))
            else:
                self._begin(method, path)

    def _take_turn(self, work: Callable[[], None]) -> None:
        self.engine.stats.interrupted += self.engine.turns.take(self, work)

    def interrupt(self) -> bool:
        """Another call came: end the running stream, if it is one."""
        answer, self._answer = self._answer, None
        if answer is not None:
            answer.interrupt()
        return answer is not None

    def step(self) -> None:
        """Go on by one token, if the running stream comes by steps."""
        if self._answer is not None and self._answer.stepped:
            self._answer.advance()

    def _housekeeping(self, method: str, path: str) -> bool:
        """Answer the routes that are about the engine, not for a model. False if this is none of them."""
        engine = self.engine
        if path == "/_stats":
            self.send(200, engine.stats.as_json())
        elif path == "/_step" and method == "POST":
            engine.step()
            self.send(200, b"{}")
        elif path == "/_script" and method == "POST":
            own(self._obey(orjson.loads(self._upload.body)))
        elif path in ("/health", "/metrics") and engine.habits & _OF_LLAMA_CPP_PYTHON:
            self.send(404, b'{"detail":"Not Found"}')
        elif path == "/metrics":
            text = answers.metrics_body(engine.models, engine.stats.running, engine.waiting, engine.kv_use)
            self.send(200, text, "text/plain; version=0.0.4")
        elif path in ("/health", "/v1/models") and not engine.well:
            self.send(503, answers.error_body(503, "the engine is not well"))
        elif path == "/health":
            self.send(200, b"")
        elif engine.api_key is not None and self._headers.get("authorization") != f"Bearer {engine.api_key}":
            self.send(401, answers.error_body(401, "wrong key for this engine"))
        elif path == "/v1/models":
            self._list_models()
        else:
            return self._tell_of_video(method, path)
        return True

    def _tell_of_video(self, method: str, path: str) -> bool:
        """The same for one that is being made."""
        if not path.startswith(f"{VIDEOS}/") or method == "POST":
            return False
        self.send(*self.engine.videos.answer(method, path))
        return True

    def _list_models(self) -> None:
        engine = self.engine
        if Habit.INTERRUPTS in engine.habits:
            self._take_turn(self._say_little)
        elif Habit.LOOKS_INTERRUPT in engine.habits:
            engine.stats.interrupted += engine.interrupt()
            self._say_little()
        else:
            self.send(200, answers.models_body(engine.models, engine.context_tokens))

    def _say_little(self) -> None:
        """As llama-cpp-python does, which keeps all others waiting meanwhile."""
        self.send(200, answers.models_body(self.engine.models, None, owner="me"))
        self.engine.turns.leave(self)

    async def _obey(self, order: dict[str, Any]) -> None:
        self.engine.direct(order)
        if "trouble" in order:
            await self.engine.suffer(Trouble(order["trouble"]))
        if not self.transport.is_closing():
            self.send(200, b"{}")

    # --- the answer

    def _begin(self, method: str, path: str) -> None:
        stats = self.engine.stats
        stats.started += 1
        stats.running += 1
        stats.peak_running = max(stats.peak_running, stats.running)
        self.engine.watch_peak(self.loop)
        stats.last_sha256 = self._upload.sha256
        self._running = True
        body = self._upload.json()
        try:
            script = self.engine.script_for(body)
        except (TypeError, ValueError) as error:
            return self._reply(400, answers.error_body(400, f"bad script: {error}"))
        pause_s = script.delay_s
        if script.prefill_tokens_per_s > 0:
            read_s = len(prompt_of(body)) / _TOKEN_BYTES / script.prefill_tokens_per_s
            self.engine.read_until_s = max(self.engine.read_until_s, self.loop.time()) + read_s
            pause_s += self.engine.read_until_s - self.loop.time()
        if pause_s > 0:
            self._timer = self.loop.call_later(pause_s, self._respond, method, path, body, script)
        else:
            self._respond(method, path, body, script)

    def _respond(self, method: str, path: str, body: dict[str, Any], script: Script) -> None:
        if self.engine.trouble is not Trouble.NONE and self._suffers(method, path, body, script):
            return
        if script.status != 200:
            extra = () if script.retry_after is None else (("retry-after", script.retry_after),)
            return self._reply(script.status, answers.error_body(script.status, "as the script says"), extra)
        if script.fault is not Fault.NONE and script.after == 0:
            return self._fail(script.fault)
        route = answers.ROUTES.get(path.partition("?")[0])
        if method == "POST" and path == VIDEOS:
            made = self.engine.videos.create(self.engine.next_id("video"), body | self._upload.fields, script)
            self._finish(in_order=True)
            return self.send(*made)
        if Habit.CHAT_ONLY in self.engine.habits and route != "chat":
            return self._reply(404, b'{"detail":"Not Found"}')
        if method != "POST" or route is None:
            return self._reply(200, self._echo(method, path))
        if not body:
            return self._reply(400, answers.error_body(400, "the body is not a JSON object"))
        if "stream_options" in body and Habit.REJECTS_STREAM_OPTIONS in self.engine.habits:
            return self._reply(422, answers.error_body(422, "Unexpected fields: {'stream_options'}"))
        self._say(route, body, script)

    def _suffers(self, method: str, path: str, body: dict[str, Any], script: Script) -> bool:
        """Do to a new request what the engine's trouble does. False if that is nothing."""
        trouble = self.engine.trouble
        if trouble in (Trouble.ERROR, Trouble.UNENDED):
            self._reply(500, answers.error_body(500, "the engine failed on this request"))
        elif trouble is Trouble.MEMORY:
            self._reply(500, answers.error_body(500, "CUDA out of memory. Tried to allocate 2.00 GiB"))
        elif trouble is Trouble.BUSY:
            self._reply(503, answers.error_body(503, "the model is loading"))
        elif trouble in _KEEP_WAITING:
            self._waiting = lambda: self._respond(method, path, body, script)
        elif trouble is Trouble.CUT:
            self._fail(Fault.DIE)
        elif trouble is Trouble.MALFORMED:
            self._fail(Fault.GARBAGE)
        else:
            return False
        return True

    def _say(self, route: str, body: dict[str, Any], script: Script) -> None:
        engine = self.engine
        try:
            planned = plan(route, body, script, continues=engine.continues)
        except NotContinuable as error:
            return self._reply(400, answers.error_body(400, str(error)))
        if body.get("stream") and route in STREAMED:
            ends = Habit.OMITS_END not in engine.habits
            streamed = STREAMED[route](body, planned, script, engine.next_id, ends=ends)
            self._answer = StreamedAnswer(self, streamed)
            return self._answer.start()
        whole = orjson.dumps(answers.UNARY[route](body, planned, engine.next_id))
        count = len(planned.tokens) if route in STREAMED else 0
        self._computing = Computing(count, script.whole_tokens_per_s, self.loop.time())
        if self._computing.lasts_s > 0:
            self._timer = self.loop.call_later(self._computing.lasts_s, self._say_whole, whole)
        else:
            self._say_whole(whole)

    def _say_whole(self, body: bytes) -> None:
        """Its last token is computed."""
        assert self._computing is not None
        self.engine.stats.computed_tokens += self._computing.tokens
        self._computing = None
        self._reply(200, body)

    def _echo(self, method: str, path: str) -> bytes:
        """What arrived, for every route without a meaning here: uploads among them."""
        upload = self._upload
        seen = {
            "method": method,
            "path": path,
            "headers": self._headers,
            "bytes": upload.size_bytes,
            "sha256": upload.sha256,
            "fields": upload.fields,
            "text": f"{upload.sha256} {upload.size_bytes}",
        }
        return orjson.dumps(seen)

    def _reply(self, status: int, body: bytes, headers: tuple[tuple[str, str], ...] = ()) -> None:
        self._finish(in_order=True)
        self.send(status, body, _JSON, headers)

    def send(
        self, status: int, body: bytes, kind: str = _JSON, headers: tuple[tuple[str, str], ...] = ()
    ) -> None:
        head = f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\ncontent-type: {kind}\r\n"
        head += "".join(f"{name}: {value}\r\n" for name, value in headers)
        self.transport.write(f"{head}content-length: {len(body)}\r\n\r\n".encode() + body)
        if not self._parser.should_keep_alive():
            self.transport.close()

    def _fail(self, fault: Fault) -> None:
        """The faults that strike before a head."""
        if fault is Fault.GARBAGE:
            self.transport.write(b"\x00\xff\x16\x03 this is not HTTP\r\n\r\n")
            self._finish(in_order=True)
            self.transport.close()
        elif fault is Fault.RUBBISH:
            self._reply(200, b"<html>\xff\xfe rubbish")
        elif fault in (Fault.DIE, Fault.CLOSE):
            self._finish(in_order=True)
            (self.transport.abort if fault is Fault.DIE else self.transport.close)()

    def answer_over(self) -> None:
        """Called by the streamed answer when its last byte was written."""
        self._answer = None
        self._finish(in_order=True)

    def _finish(self, in_order: bool = False) -> None:
        self._running = False
        self.engine.stats.running -= 1
        self.engine.peak_passed()
        self.engine.stats.finished += in_order
        self.engine.turns.leave(self)


_OF_LLAMA_CPP_PYTHON = {Habit.INTERRUPTS, Habit.LOOKS_INTERRUPT}

_KEEP_WAITING = (Trouble.HANG, Trouble.STALL, Trouble.UNWELL, Trouble.SILENT)
"""While one of these lasts, new requests get no answer."""
