"""The engine as an object: its models, its counters, its listening socket."""

import asyncio
import collections
import itertools
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import orjson

from tests.support.scripted_engine.script import Script


@dataclass(slots=True)
class Stats:
    """What an engine has seen; ``GET /_stats`` gives the same as JSON."""

    running: int = 0
    """Requests whose answer has not ended."""
    peak_running: int = 0
    started: int = 0
    finished: int = 0
    cancelled: int = 0
    """Requests whose caller went away first."""
    connections: int = 0
    """Connections open now."""
    received_bytes: int = 0
    sent_tokens: int = 0
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
    ) -> None:
        self.models = models
        self.default = default or Script()
        self.once: collections.deque[Script] = collections.deque(maxlen=1000)
        self.context_tokens = context_tokens
        self.api_key = api_key
        self.stats = Stats()
        self.waiting = 0
        """What ``/metrics`` says of requests waiting."""
        self.kv_use = 0.0
        """What ``/metrics`` says of the KV cache, 0 to 1."""
        self.healthy = True
        """False: ``/health`` and ``/v1/models`` answer 503."""
        self.unix_socket = unix_socket
        self._port = port
        self._ids = itertools.count(1)
        self._server: asyncio.Server | None = None
        self._transports: set[asyncio.Transport] = set()

    @property
    def port(self) -> int:
        assert self._server is not None, "not started"
        return int(self._server.sockets[0].getsockname()[1])

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def start(self) -> None:
        from tests.support.scripted_engine.http import EngineProtocol

        loop = asyncio.get_running_loop()
        if self.unix_socket is not None:
            self._server = await loop.create_unix_server(lambda: EngineProtocol(self), str(self.unix_socket))
        else:
            self._server = await loop.create_server(
                lambda: EngineProtocol(self), "127.0.0.1", self._port, backlog=4096
            )

    async def close(self) -> None:
        """Stop listening and reset what is open, as a killed engine does."""
        if self._server is not None:
            self._server.close()
            for transport in tuple(self._transports):
                transport.abort()
            await self._server.wait_closed()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def connected(self, transport: asyncio.Transport) -> None:
        self._transports.add(transport)
        self.stats.connections = len(self._transports)

    def disconnected(self, transport: asyncio.Transport) -> None:
        self._transports.discard(transport)
        self.stats.connections = len(self._transports)

    def next_id(self, prefix: str) -> str:
        return f"{prefix}-{next(self._ids)}"

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
