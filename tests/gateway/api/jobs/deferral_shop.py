"""A surface whose process runs jobs, for requests that become ones while they are answered."""

import asyncio
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gateway.api.exchange.inbound import BodyLimits
from gateway.api.exchange.job_exchange import JobSources
from gateway.api.exchange.job_runs import JobPipeline
from gateway.api.jobs.pages import JobAccess
from gateway.domain.jobs import JobRecord
from gateway.domain.request import Principal, Request
from gateway.jobs.ends import EndSettings, JobEnds
from gateway.jobs.objects import ObjectOpener
from gateway.jobs.output import OutputSettings
from gateway.jobs.runner import JobRunner
from gateway.jobs.runner_settings import RunnerSettings
from gateway.jobs.runs import JobAnswer, JobRun, RetrySettings
from gateway.pipeline.accumulation import AccumulatedRun
from gateway.pipeline.pipeline import Pipeline
from gateway.storage import Store
from tests.gateway.api.calls import Call
from tests.gateway.api.jobs.access import JobDoer
from tests.gateway.api.support import BEARER, CHAT, EVENTS, JSON_TYPE, FakeResponse, Surface
from tests.gateway.jobs.shop import AnyRoom

BODY = b'{"model":"m","messages":[{"role":"user","content":"Hi"}]}'
PIECES = [
    b'data: {"id":"c","choices":[{"index":0,"delta":{"role":"assistant","content":"Good "}}]}\n\n',
    b'data: {"id":"c","choices":[{"index":0,"delta":{"content":"day"},"finish_reason":"stop"}]}\n\n',
    b'data: {"id":"c","choices":[],"usage":{"completion_tokens":2}}\n\n',
    b"data: [DONE]\n\n",
]
FAST = RunnerSettings(
    poll_s=0.01,
    busy_poll_s=0.01,
    gap_s=0.0,
    retry=RetrySettings(first_s=0.0),
    output=OutputSettings(interval_s=0.001),
)


class Keys:
    """By their ids, as jobs present them."""

    async def identify(self, presented: str) -> Principal:
        return Principal(presented, "tests", "default")


class Patience:
    """Of clients; the test ends it."""

    def __init__(self) -> None:
        self.over = asyncio.Event()

    async def __call__(self, task: asyncio.Task[Any], wait_s: float) -> None:
        over = asyncio.create_task(self.over.wait())
        try:
            await asyncio.wait({task, over}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            over.cancel()


class Shop:
    """A surface whose process runs jobs."""

    def __init__(self, store: Store, access: JobAccess, directory: Path) -> None:
        self.store, self.access = store, access
        self.doer = JobDoer(store, directory)
        objects = ObjectOpener(lambda: self.doer.objects)
        self.ends = ends = JobEnds(store.job_claims, store.jobs, objects, EndSettings())
        self._pipeline: JobPipeline | None = None
        self.runner = JobRunner(store.job_claims, objects, AnyRoom(), self._run, ends, ("p", 1), FAST)
        self.patience = Patience()
        self.surface = Surface(jobs=access, runner=self.runner, within=self.patience)
        run = AccumulatedRun(self.surface.dispatcher.run, lambda model, route: True)
        pipeline = Pipeline(Keys(), run)
        sources = JobSources(objects, self.surface.budget, BodyLimits(), None, time.time)
        self._pipeline = JobPipeline(pipeline, pipeline, sources, self.surface.books, 1 << 20)

    async def _run(self, run: JobRun) -> JobAnswer:
        assert self._pipeline is not None
        return await self._pipeline(run)

    @property
    def dispatched(self) -> list[Request]:
        return self.surface.dispatcher.requests

    async def deferred(self, call: Call) -> Call:
        """Once its engine has it, its client waits no longer."""
        await until(lambda: self.dispatched)
        self.patience.over.set()
        return await call.done(30)

    def post(self, wait_s: int, body: bytes = BODY, key: bytes = b"", path: str = CHAT) -> Call:
        prefer = (b"prefer", b"respond-async, wait=%d" % wait_s)
        more = ((b"idempotency-key", key),) if key else ()
        call = self.surface.ask("POST", path, BEARER, JSON_TYPE, prefer, *more)
        call.body(body)
        return call

    def jobs(self) -> tuple[JobRecord, ...]:
        return self.store.jobs.list(limit=100)

    async def ended(self, job_id: str) -> JobRecord:
        await until(lambda: self.store.jobs.get(job_id).state.is_final)
        return self.store.jobs.get(job_id)

    async def result(self, job: JobRecord) -> bytes:
        assert job.outcome is not None
        assert job.outcome.result is not None, job.outcome
        return await self.doer.objects.read_bytes(job.outcome.result, 1 << 20)

    async def kept(self) -> list[str]:
        return sorted(await self.doer.objects.names("jobs"))


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.002)


def streamed(shop: Shop) -> FakeResponse:
    """An answer whose events the test tells."""
    return shop.surface.dispatcher.answer(FakeResponse(200, EVENTS, ended=False))
