"""Requests, and answers under a test's control, for the cache."""

import asyncio
from collections.abc import Callable
from typing import Any

import orjson
from prometheus_client import CollectorRegistry

from gateway.dispatch.response_stream import Sink
from gateway.domain.errors import EngineError
from gateway.domain.request import Principal, Request, RequestBody, Tier
from gateway.domain.residency import Residency
from gateway.domain.surface import CHAT, ENDPOINTS, EngineTarget, SurfaceEndpoint
from gateway.pipeline.cache import (
    AnswerCache,
    CacheLookup,
    CacheMetrics,
    CacheRule,
    CacheSettings,
    CacheStage,
)
from gateway.pipeline.client_body import BodyKind, ClientBody
from gateway.pipeline.client_head import ClientHead
from gateway.pipeline.relay import Response
from shared.protocol.messages import Headers, Trailers, Usage, UsageMode

EMBEDDINGS = next(each for each in ENDPOINTS if each.route == "embeddings")
JSON = (("content-type", "application/json"), ("x-request-cost", "7"))
EVENTS = (("content-type", "text/event-stream"),)


def request(
    members: dict[str, Any] | None = None,
    *,
    endpoint: SurfaceEndpoint = EMBEDDINGS,
    tenant: str = "acme",
    model: str = "m",
    headers: Headers = (("content-type", "application/json"),),
    version: str | None = None,
    where: Residency | None = None,
    tier: Tier = Tier.STANDARD,
    deadline_s: float | None = None,
    usage: UsageMode = UsageMode.NONE,
) -> Request:
    members = {"model": model, "input": "hello"} if members is None else members
    return Request(
        id="r",
        principal=Principal("k", "key", tenant),
        method="POST",
        path=endpoint.path,
        headers=headers,
        model=model,
        route=endpoint.route,
        streaming=bool(members.get("stream")),
        body=RequestBody(orjson.dumps(members)),
        arrived_s=0.0,
        need=endpoint.route,
        version=version,
        where=where,
        tier=tier,
        deadline_s=deadline_s,
        usage=usage,
    )


def chat(**members: Any) -> Request:
    said = {"model": "m", "messages": [{"role": "user", "content": "Hi"}], "temperature": 0}
    return request({**said, **members}, endpoint=CHAT)


class Engine:
    """What a request is given to. Each answer waits until the test lets it go on."""

    def __init__(self) -> None:
        self.asked: list[Request] = []
        self.answers: list[Answer] = []
        self.opened: list[asyncio.Event] = []
        self.body: bytes = b'{"data":[1]}'
        self.headers: Headers = JSON
        self.status = 200
        self.version = "v1"
        self.failing: set[int] = set()
        """Numbers of requests that come to nothing."""
        self.breaking: dict[int, Exception] = {}
        """How the answers of these numbers end."""
        self.held = False
        """Whether answers wait for :meth:`go`."""

    async def run(self, asked: Request) -> Response:
        number = len(self.asked)
        self.asked.append(asked)
        self.opened.append(asyncio.Event())
        if self.held:
            await self.opened[number].wait()
        if number in self.failing:
            raise EngineError("it failed")
        answer = Answer(self)
        answer.broken = self.breaking.get(number)
        self.answers.append(answer)
        return answer

    def go(self, number: int) -> None:
        self.opened[number].set()


class Answer:
    """A response whose body comes in pieces of five bytes."""

    def __init__(self, engine: Engine) -> None:
        self.status = engine.status
        self.headers = engine.headers
        self.agent = "gpu-7"
        self.version = engine.version
        self.ran_by = ""
        self.queue_s = 0.5
        self.attempts = 1
        self.trailers: Trailers | None = None
        self.continued = False
        self.aborted = False
        self.credit_bytes = 0
        self.broken: Exception | None = None
        body = engine.body
        self.pieces = [body[start : start + 5] for start in range(0, len(body), 5)]

    def take_whole(self) -> bytes | None:
        return None

    async def next_chunks(self, sink: Sink | None = None) -> list[bytes]:
        if sink is not None and len(self.pieces) > 1:
            piece = self.pieces.pop(0)
            assert sink(piece)
            self.credit_bytes += len(piece)
        if self.pieces:
            return [self.pieces.pop(0)]
        if self.broken is not None:
            raise self.broken
        self.trailers = Trailers(usage=Usage(3, 4))
        return []

    def consumed(self, size_bytes: int) -> None:
        self.credit_bytes += size_bytes

    def abort(self) -> None:
        self.aborted = True


class Site:
    """The stage, an engine behind it and a clock."""

    def __init__(self, rule: CacheRule | None = None, **settings: Any) -> None:
        rules = {"m": CacheRule(cache_s=60.0) if rule is None else rule}
        self.settings = CacheSettings(settings.pop("models", rules), **settings)
        self.cache = AnswerCache(self.settings.cache_bytes, self.settings.entries)
        self.registry = CollectorRegistry()
        self.now_s = 100.0
        self.versions = {"v1"}
        self.stage = CacheStage(
            self.settings,
            self.cache,
            CacheMetrics(self.registry, self.cache),
            lambda _, version: version in self.versions,
            lambda: self.now_s,
        )
        self.engine = Engine()

    def lookup(self, wish: bytes | None = None) -> CacheLookup:
        fields = {} if wish is None else {b"x-trunkline-cache": wish}
        head = ClientHead("r", "POST", EMBEDDINGS, EngineTarget("/"), [], fields, 0.0)
        found = self.stage.lookup(head, ClientBody(BodyKind.JSON, RequestBody(b"")))
        assert found is not None
        return found

    async def ask(
        self, asked: Request | None = None, wish: bytes | None = None, sink: Sink | None = None
    ) -> tuple[str, bytes]:
        """What became of it, and the body as its client got it."""
        lookup = self.lookup(wish)
        response = await lookup.run(asked or request(), self.engine.run)
        return lookup.outcome, await read(response, sink)

    def counted(self, outcome: str) -> float | None:
        labels = {"model": "m", "outcome": outcome}
        return self.registry.get_sample_value("trunkline_cache_requests_total", labels)

    def assert_quiet(self) -> None:
        assert len(self.stage.shared_requests) == 0
        assert self.cache.reserved_bytes == 0


async def read(response: Response, sink: Sink | None = None) -> bytes:
    """As the relay does it."""
    body = b""

    def take(data: bytes) -> bool:
        nonlocal body
        body += data
        return True

    try:
        while chunks := await response.next_chunks(take if sink is None else sink):
            for chunk in chunks:
                body += chunk
                response.consumed(len(chunk))
    finally:
        response.abort()
    return body


async def turns(count: int = 20) -> None:
    """Let everything go on that can."""
    for _ in range(count):
        await asyncio.sleep(0)


async def until(true: Callable[[], bool]) -> None:
    for _ in range(200):
        if true():
            return
        await asyncio.sleep(0)
    raise AssertionError("it never came to be")
