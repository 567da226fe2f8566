"""Fakes around the HTTP surface: keys, a catalogue, a dispatcher that does what the test says."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import orjson

from gateway.api.exchange.buffers import BufferBudget
from gateway.api.exchange.exchange import HttpExchange, HttpSettings
from gateway.api.exchange.job_runs import JobBooks
from gateway.api.exchange.middleware import RequestMiddleware, with_origin_checks
from gateway.api.jobs.deferral import Deferral
from gateway.api.jobs.pages import JobAccess, jobs_pages
from gateway.api.jobs.respond_async import AsyncRequests
from gateway.api.jobs.responses import responses_pages
from gateway.api.jobs.videos import videos_pages
from gateway.api.openai.batches import batches_pages
from gateway.api.openai.files import files_pages
from gateway.api.openai.handlers import KeyedPage
from gateway.api.openai.uploads import uploads_pages
from gateway.api.routes import build_router
from gateway.api.server.client_addresses import PerAddressLimiter
from gateway.api.server.request_parser import ConnectionLimits
from gateway.api.server.server import Address, bind, build_server
from gateway.dispatch.response_stream import READ_BYTES, Sink
from gateway.domain.errors import RequestError, StreamBroken, Unauthenticated
from gateway.domain.request import Principal, Request
from gateway.fleet.registry import ServedModel
from gateway.jobs.batches.service import BatchService
from gateway.jobs.files import FileService
from gateway.jobs.runner import JobRunner
from gateway.jobs.uploads import UploadService
from gateway.observability.metrics import Metrics
from gateway.pipeline.accumulation import AccumulatedRun
from gateway.pipeline.aliases import AliasCatalog
from gateway.pipeline.bodies.reader import BodyReader
from gateway.pipeline.pipeline import Pipeline
from gateway.pipeline.relay import Response
from gateway.quota.usage import UsageLedger
from gateway.runtime.lifecycle import Lifecycle
from shared.protocol.messages import Headers, Trailers
from tests.gateway.api.calls import Call
from tests.gateway.api.jobs.access import accept_webhook

CHAT = "/v1/chat/completions"
ASK = b'{"model":"m","messages":[]}'
STREAM = b'{"model":"m","stream":true}'
KEY = "sk-tl-test"
BEARER = (b"authorization", b"Bearer sk-tl-test")
JSON_TYPE = (b"content-type", b"application/json")
EVENTS: Headers = (("content-type", "text/event-stream"),)
MIB = 1024 * 1024


def error_in(content: bytes) -> dict[str, object]:
    """What an answer in OpenAI's form says of an error."""
    return dict(orjson.loads(content)["error"])


class FakeKeys:
    def __init__(self, principal: Principal | None = None) -> None:
        self.principal = principal or Principal("k1", "tests", "default")

    async def identify(self, presented: str) -> Principal:
        if presented != KEY:
            raise Unauthenticated("This gateway knows no such key.")
        return self.principal


class FakeCatalog(AliasCatalog):
    def __init__(self, *models: ServedModel) -> None:
        self._served = {info.id: info for info in models}

    @property
    def agents_connected(self) -> int:
        return 1

    def each_model(self) -> Iterator[ServedModel]:
        return iter(self._served.values())

    def model(self, name: str) -> ServedModel | None:
        return self._served.get(name)


class FakeMetrics(Metrics):
    CONTENT_TYPE = "text/plain"

    async def render(self) -> bytes:
        return b"trunkline_up 1\n"


class CountedRequests(Metrics):
    """Keeps what is counted of requests."""

    def __init__(self) -> None:
        self.finished: list[tuple[str, str, int]] = []
        """Route, model and status of each."""
        self.streams: list[tuple[str, float, float, int | None]] = []
        """Model, seconds to the first token, seconds in all, tokens."""
        self.agents: list[tuple[str, int]] = []
        """Who answered, with which status."""

    def request_finished(
        self,
        route: str,
        model: str,
        status: int,
        duration_s: float,
        tier: str = "",
        tenant: str | None = None,
        agent: str | None = None,
    ) -> None:
        assert duration_s >= 0
        self.finished.append((route, model, status))
        if agent is not None:
            self.agents.append((agent, status))

    def streamed(
        self, model: str, first_token_s: float, lasted_s: float, tokens: int | None, tier: str
    ) -> None:
        self.streams.append((model, first_token_s, lasted_s, tokens))


class FakeResponse:
    """A response that the test feeds: ``chunks`` at once, more by :meth:`feed`, the end by :meth:`end`."""

    def __init__(
        self, status: int = 200, headers: Headers = (), chunks: tuple[bytes, ...] = (), ended: bool = True
    ) -> None:
        self.status = status
        self.headers = headers
        self.agent = "gpu-1"
        self.version = ""
        self.ran_by = ""
        self.queue_s = 0.0125
        self.attempts = 1
        self.continued = False
        self.trailers: Trailers | None = None
        self.consumed_bytes = 0
        self.aborted = False
        self._chunks = list(chunks)
        self._ended = ended
        self._broken: StreamBroken | None = None
        self._news = asyncio.Event()
        self._sink: Sink | None = None
        self.sunk = 0
        """Pieces that took the short way."""

    def feed(self, *chunks: bytes) -> None:
        for chunk in chunks:
            if self._sink is not None and self._sink(chunk):
                self.sunk += 1
                self.consumed_bytes += len(chunk)
            else:
                self._sink = None
                self._chunks.append(chunk)
                self._news.set()

    def end(self) -> None:
        self._ended = True
        self._sink = None
        self._news.set()

    def break_off(self, broken: StreamBroken) -> None:
        self._broken = broken
        self._sink = None
        self._news.set()

    def take_whole(self) -> bytes | None:
        if not self._ended or self._broken is not None or sum(map(len, self._chunks)) > READ_BYTES:
            return None
        chunks, self._chunks = self._chunks, []
        return b"".join(chunks)

    async def next_chunks(self, sink: Sink | None = None) -> list[bytes]:
        while True:
            if self._chunks:
                chunks, self._chunks = self._chunks, []
                return chunks
            if self._broken is not None:
                raise self._broken
            if self._ended:
                return []
            self._news.clear()
            self._sink = sink
            await self._news.wait()
            self._sink = None

    def consumed(self, size_bytes: int) -> None:
        self.consumed_bytes += size_bytes

    def abort(self) -> None:
        self.aborted = True


Serve = Callable[[Request], Awaitable[Response]]


def json_response(body: bytes = b'{"ok":true}', status: int = 200) -> FakeResponse:
    headers = (("content-type", "application/json"), ("content-length", str(len(body))))
    return FakeResponse(status, headers, (body,))


class FakeDispatcher:
    """Keeps the requests it got; answers with ``serve``, which may await, raise or return a response."""

    def __init__(self) -> None:
        self.requests: list[Request] = []
        self.bodies: list[bytes] = []
        self.cancelled = 0
        self.left = asyncio.Event()
        """A request was cancelled."""
        self.arrived = asyncio.Event()
        self.serve: Serve = self._default

    async def _default(self, request: Request) -> FakeResponse:
        return json_response()

    async def run(self, request: Request) -> Response:
        self.requests.append(request)
        self.arrived.set()
        try:
            return await self.serve(request)
        except asyncio.CancelledError:
            self.cancelled += 1
            self.left.set()
            raise

    def answer(self, response: FakeResponse) -> FakeResponse:
        """From now on, this."""

        async def serve(request: Request) -> FakeResponse:
            return response

        self.serve = serve
        return response

    def fail(self, error: Exception) -> None:
        async def serve(request: Request) -> FakeResponse:
            raise error

        self.serve = serve

    def hold(self) -> "asyncio.Future[FakeResponse]":
        """Wait for this future."""
        held: asyncio.Future[FakeResponse] = asyncio.get_running_loop().create_future()

        async def serve(request: Request) -> FakeResponse:
            return await asyncio.shield(held)

        self.serve = serve
        return held

    @property
    def request(self) -> Request:
        return self.requests[-1]


async def whole_body(request: Request) -> bytes:
    """What an upload would send."""
    parts = [request.body.prefix]
    if request.body.rest is not None:
        request.body.rest_begun = True
        parts += [chunk async for chunk in request.body.rest]
    return b"".join(parts)


@dataclass
class Surface:
    """The HTTP surface with fakes behind it."""

    settings: HttpSettings = field(default_factory=HttpSettings)
    catalog: FakeCatalog = field(default_factory=FakeCatalog)
    buffer_bytes: int = 256 * MIB
    dispatcher: FakeDispatcher = field(default_factory=FakeDispatcher)
    lifecycle: Lifecycle = field(default_factory=Lifecycle)
    finished: list[tuple[HttpExchange, int, RequestError | None]] = field(default_factory=list)
    accounts: UsageLedger | None = None
    keys: FakeKeys = field(default_factory=FakeKeys)
    reader: BodyReader | None = None
    files: FileService | None = None
    jobs: JobAccess | None = None
    uploads: UploadService | None = None
    batches: BatchService | None = None
    runner: JobRunner | None = None
    """Runs jobs in this process."""
    within: Callable[[asyncio.Task[Any], float], Awaitable[None]] | None = None
    """In which clients wait that prefer not to wait for long."""

    def __post_init__(self) -> None:
        keys = self.keys
        self.budget = BufferBudget(self.buffer_bytes)
        self.books = JobBooks(Metrics())
        pipeline = Pipeline(keys, self.dispatcher.run, self.accounts, facts=self.settings.facts)
        files = {} if self.files is None else files_pages(keys, self.files)
        if self.uploads is not None:
            files |= uploads_pages(keys, self.uploads)
        batches = {} if self.batches is None else batches_pages(keys, self.batches, accept_webhook)
        jobs: dict[str, KeyedPage] = {}
        if self.jobs is not None:
            jobs = jobs_pages(keys, self.jobs) | responses_pages(keys, self.jobs)
            jobs |= videos_pages(keys, self.jobs, lambda name: name != "unknown")
        router = build_router(
            pipeline,
            keys,
            self.catalog,
            FakeMetrics(),
            self.lifecycle,
            self.settings,
            files={**files, **batches, **jobs},
            later=None if self.jobs is None else AsyncRequests(keys, self.jobs, deferral=self._deferral()),
        )
        self.app = RequestMiddleware(
            with_origin_checks(router, self.settings),
            self.settings,
            self.budget,
            self.lifecycle,
            lambda *facts: self.finished.append(facts),
            self.reader,
        )
        self.lifecycle.serve()

    def _deferral(self) -> Deferral | None:
        """All models have engines that can go on with answers."""
        if self.jobs is None or self.runner is None:
            return None
        run = AccumulatedRun(self.dispatcher.run, lambda model, route: True)
        pipeline = Pipeline(self.keys, run, self.accounts, facts=self.settings.facts)
        given = (self.jobs, pipeline, self.runner, self.books, self.budget)
        return Deferral(*given) if self.within is None else Deferral(*given, self.within)

    def ask(self, method: str, path: str, *headers: tuple[bytes, bytes], **options: Any) -> Call:
        """Begin a request; see :class:`Call`."""
        return Call(self.app, method, path, headers, **options)

    async def post(self, path: str, body: bytes, *headers: tuple[bytes, bytes], key: bool = True) -> Call:
        """A request with a body in one piece, answered."""
        length = (b"content-length", str(len(body)).encode())
        call = self.ask("POST", path, length, *((BEARER,) if key else ()), *headers)
        call.body(body)
        return await call.done()

    async def get(
        self, path: str, *headers: tuple[bytes, bytes], method: str = "GET", key: bool = True
    ) -> Call:
        call = self.ask(method, path, *((BEARER,) if key else ()), *headers)
        call.body(b"")
        return await call.done()


@asynccontextmanager
async def served(
    surface: Surface, limits: ConnectionLimits | None = None, places: PerAddressLimiter | None = None
) -> AsyncIterator[str]:
    """The surface on a real server on loopback; gives its address, ``127.0.0.1:PORT``."""
    server = build_server(
        surface.app,
        Address("127.0.0.1", 0),
        limits or ConnectionLimits(),
        lambda **options: None,
        places=places,
    )
    listener = bind(Address("127.0.0.1", 0))
    serving = asyncio.get_running_loop().create_task(server.serve([listener]))
    await server.ready.wait()
    try:
        yield f"127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.should_exit = True
        server.abort_connections()
        await serving
