"""The engine as an object: its models, its counters, its listening socket."""

import asyncio
import collections
import itertools
import secrets
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import orjson

from tests.support.scripted_engine.script import Habit, Script, Trouble
from tests.support.scripted_engine.videos import MadeVideos

if TYPE_CHECKING:
    from tests.support.scripted_engine.http import EngineProtocol


PEAK_S = 0.05


@dataclass(slots=True)
class Stats:
    """What an engine has seen; ``GET /_stats`` gives the same as JSON."""

    running: int = 0
    """Requests whose answer has not ended."""
    peak_running: int = 0
    peak_lasting: int = 0
    """The most that ran together for ``PEAK_S``: a new request may be read just before the end of the
    connection that a caller closed first."""
    started: int = 0
    finished: int = 0
    cancelled: int = 0
    """Requests whose caller went away first."""
    interrupted: int = 0
    """Streams that were ended for another call's sake."""
    connections: int = 0
    """Connections open now."""
    received_bytes: int = 0
    sent_tokens: int = 0
    """Of streams."""
    computed_tokens: int = 0
    """Of streams and of answers in one piece, those included whose caller went away meanwhile."""
    last_sha256: str = ""
    """Digest of the last body (of the file in it, when it was multipart)."""
    requests: "collections.deque[str]" = field(default_factory=lambda: collections.deque(maxlen=1000))
    """``METHOD path`` of the last thousand requests."""

    def as_json(self) -> bytes:
        return orjson.dumps(asdict(self) | {"requests": list(self.requests)})


class ScriptedEngine:
    """An OpenAI-compatible engine that does as it is told, on loopback or on a Unix socket.

    Use as an async context manager. ``default`` applies to requests that bring no script of their own;
    ``once`` holds scripts for the next requests, used up one by one, before the default.
    """

    def __init__(
        self,
        *,
        models: tuple[str, ...] = ("scripted",),
        default: Script | None = None,
        context_tokens: int = 4096,
        api_key: str | None = None,
        unix_socket: Path | None = None,
        port: int = 0,
        continues: bool = True,
        repeats_head: bool = False,
        habits: Iterable[Habit] = (),
    ) -> None:
        """``continues``: goes on with answers others began; ``repeats_head``: and says them again first."""
        self.habits = frozenset(habits)
        self.turns = Turns()
        self.videos = MadeVideos()
        self.models = models
        self.default = default or Script()
        self.once: collections.deque[Script] = collections.deque(maxlen=1000)
        self.context_tokens = context_tokens
        self.api_key = api_key
        self.stats = Stats()
        self.read_until_s = 0.0
        """On the loop's clock, when the prompts that came so far will have been read."""
        self.waiting = 0
        """What ``/metrics`` says of requests waiting."""
        self.kv_use = 0.0
        """What ``/metrics`` says of the KV cache, 0 to 1."""
        self.healthy = True
        """False: ``/health`` and ``/v1/models`` answer 503."""
        self.unix_socket = unix_socket
        self.continues = continues
        self.repeats_head = repeats_head
        self.trouble = Trouble.NONE
        self._port = port
        self._ids = itertools.count(1)
        self._run = secrets.token_hex(4)
        self._server: asyncio.Server | None = None
        self._control: asyncio.Server | None = None
        self._protocols: set[EngineProtocol] = set()
        self._least_running: int | None = None
        """Since somebody began to look whether a peak lasts."""

    @property
    def port(self) -> int:
        assert self._port, "not started"
        return self._port

    @property
    def control_port(self) -> int:
        """Where it takes orders even while it refuses connections."""
        assert self._control is not None, "not started"
        return int(self._control.sockets[0].getsockname()[1])

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def start(self) -> None:
        from tests.support.scripted_engine.http import EngineProtocol

        loop = asyncio.get_running_loop()
        if self.unix_socket is not None:
            self._server = await loop.create_unix_server(lambda: EngineProtocol(self), str(self.unix_socket))
        else:
            await self._listen()
        self._control = await loop.create_server(lambda: EngineProtocol(self, control=True), "127.0.0.1", 0)

    async def _listen(self) -> None:
        from tests.support.scripted_engine.http import EngineProtocol

        self._server = await asyncio.get_running_loop().create_server(
            lambda: EngineProtocol(self), "127.0.0.1", self._port, backlog=4096
        )
        self._port = int(self._server.sockets[0].getsockname()[1])

    async def close(self) -> None:
        """Stop listening and reset what is open, as a killed engine does."""
        servers = [server for server in (self._server, self._control) if server is not None]
        for server in servers:
            server.close()
        for protocol in tuple(self._protocols):
            protocol.transport.abort()
        for server in servers:
            await server.wait_closed()

    def watch_peak(self, loop: asyncio.AbstractEventLoop) -> None:
        """A request has begun: see whether as many run together for a while as never before."""
        if self._least_running is None and self.stats.running > self.stats.peak_lasting:
            self._least_running = self.stats.running
            loop.call_later(PEAK_S, self._note_peak)

    def peak_passed(self) -> None:
        """A request has ended."""
        if self._least_running is not None:
            self._least_running = min(self._least_running, self.stats.running)

    def _note_peak(self) -> None:
        self.stats.peak_lasting = max(self.stats.peak_lasting, self._least_running or 0)
        self._least_running = None

    async def suffer(self, trouble: Trouble) -> None:
        """From now on this is wrong with it; NONE heals it."""
        refused, self.trouble = self.trouble is Trouble.REFUSE, trouble
        if trouble is Trouble.REFUSE and self._server is not None:
            self._server.close()
            self._server = None
        elif refused and trouble is not Trouble.REFUSE:
            await self._listen()
        for protocol in tuple(self._protocols):
            protocol.troubled(trouble)

    @property
    def well(self) -> bool:
        """What it says of itself."""
        return self.healthy and self.trouble not in (Trouble.BUSY, Trouble.UNWELL)

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def connected(self, protocol: "EngineProtocol") -> None:
        self._protocols.add(protocol)
        self.stats.connections = len(self._protocols)

    def disconnected(self, protocol: "EngineProtocol") -> None:
        self._protocols.discard(protocol)
        self.stats.connections = len(self._protocols)

    def interrupt(self) -> int:
        """End every stream that runs, as if that were in order; gives their number."""
        return sum(protocol.interrupt() for protocol in tuple(self._protocols))

    def step(self) -> None:
        """Every stream whose tokens come by steps goes on by one."""
        for protocol in tuple(self._protocols):
            protocol.step()

    def next_id(self, prefix: str) -> str:
        """As engines make them: never the same again, nor that of another engine."""
        return f"{prefix}-{self._run}{next(self._ids)}"

    def script_for(self, body: dict[str, Any]) -> Script:
        own = body.get("script")
        base = self.once.popleft() if self.once and own is None else self.default
        return base if own is None else Script.from_json(own, base)

    def direct(self, order: dict[str, Any]) -> None:
        """Carry out ``POST /_script``; its members are named as the attributes they set."""
        if "default" in order:
            self.default = Script.from_json(order["default"], Script())
        self.once.extend(Script.from_json(script, self.default) for script in order.get("once", ()))
        self.waiting = int(order.get("waiting", self.waiting))
        self.kv_use = float(order.get("kv_use", self.kv_use))
        self.healthy = bool(order.get("healthy", self.healthy))
        self.models = tuple(order.get("models", self.models))


class Turns:
    """Who may use an engine that does one thing at a time; the others wait in order."""

    def __init__(self) -> None:
        self._holder: EngineProtocol | None = None
        self._waiting: dict[EngineProtocol, Callable[[], None]] = {}

    def take(self, protocol: "EngineProtocol", work: "Callable[[], None]") -> bool:
        """Do ``work`` when it is the turn of ``protocol``, which then ends it with :meth:`leave`. True when a
        stream was ended for that."""
        if self._holder is None:
            self._holder = protocol
            work()
            return False
        self._waiting[protocol] = work
        return self._holder.interrupt()

    def leave(self, protocol: "EngineProtocol") -> None:
        """Its turn is over, or it waits no longer."""
        self._waiting.pop(protocol, None)
        if self._holder is protocol:
            self._holder = next(iter(self._waiting), None)
            if self._holder is not None:
                self._waiting.pop(self._holder)()
