"""``Prefer: respond-async, wait=N``: a request is answered as any other, and becomes a job in the middle of
it if its client would have to wait for longer than it prefers.

Until then there is no job, and nothing of one is stored. What runs goes on as it is: the job has its stream
and what has come of its answer. A request with an idempotency key is a job from the beginning, since whoever
asks again with this key must find it; it runs at once, and here.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from typing import Any

import structlog

from gateway.api.exchange.buffers import BufferBudget
from gateway.api.exchange.deferrable import DeferrableExchange
from gateway.api.exchange.exchange import HttpExchange
from gateway.api.exchange.job_runs import JobBooks
from gateway.api.exchange.request_tracing import submitted_headers
from gateway.api.jobs.pages import JobAccess, translated
from gateway.api.jobs.preferences import webhook_of
from gateway.domain.errors import RequestError
from gateway.domain.jobs import JobRecord, NewLease
from gateway.jobs.runner import JobRunner
from gateway.jobs.runs import JobAnswer
from gateway.jobs.service import JobRequest, JobTerms, new_job_id
from gateway.pipeline.client_body import ClientBody
from gateway.pipeline.job_requests import kept_headers
from gateway.pipeline.pipeline import Pipeline
from gateway.storage.errors import StateError, UnknownRecord

_log = structlog.get_logger(__name__)

_AGAIN_S = 1.0
"""Before the store is asked again to drop a job."""


async def _within(task: asyncio.Task[Any], wait_s: float) -> None:
    await asyncio.wait({task}, timeout=wait_s)


@dataclass(frozen=True)
class Deferral:
    """Answers requests that may become jobs of this process. Belongs to the event loop's thread."""

    access: JobAccess
    pipeline: Pipeline
    """Of clients; it streams answers in one piece where their requests have a place for that."""
    runner: JobRunner
    books: JobBooks
    budget: BufferBudget
    within: Callable[[asyncio.Task[Any], float], Awaitable[None]] = _within
    """Waits for the end of a task, so many seconds at the most."""
    withdrawing: set[asyncio.Task[None]] = field(default_factory=set)
    """Jobs that the store may have, and is not to."""

    def can_take(self, body: ClientBody) -> bool:
        """Whether a request with this body may become a job in the middle: all of it is here still, to be
        kept with the job."""
        return body.content.rest is None and self.runner.new_lease() is not None

    async def __call__(self, exchange: HttpExchange, body: ClientBody, wait_s: float) -> JobRecord | None:
        """Answer it, unless it is a job after ``wait_s`` seconds. Raises RequestError."""
        job_id = new_job_id()
        output = await self.runner.held_output(job_id)
        deferrable = DeferrableExchange(exchange, job_id, body, output)
        task = asyncio.create_task(self._run(deferrable))
        try:
            async with exchange.while_here():
                await self.within(task, wait_s)
                if not task.done() and not deferrable.reply.started:
                    job = await self._made(deferrable, exchange, task)
                    if job is not None:
                        return job
                await asyncio.wait({task})
                task.result()
                return None
        finally:
            if not deferrable.is_job:
                await _end(deferrable, task)

    async def _run(self, deferrable: DeferrableExchange) -> JobAnswer:
        """The answer of the job, if it is one by then."""
        error: BaseException | None = None
        try:
            await self.pipeline.serve(deferrable)
        except BaseException as raised:
            error = raised
            raise
        finally:
            if deferrable.is_job:
                self.books.book(deferrable, error)
            deferrable.close()
            error = None
        reply = deferrable.reply.job
        return JobAnswer(reply.status, reply.headers, bytes(reply.refusal))

    async def _made(
        self, deferrable: DeferrableExchange, exchange: HttpExchange, task: asyncio.Task[JobAnswer]
    ) -> JobRecord | None:
        """The job that the request is now; None: it is none, and goes on as it is. A client that leaves
        meanwhile changes nothing."""
        lease = self.runner.new_lease()
        if lease is None or deferrable.request is None:
            return None
        deferrable.reply.hold()
        making = asyncio.create_task(self._make(deferrable, exchange, lease, task))
        try:
            return await asyncio.shield(making)
        except asyncio.CancelledError:
            await asyncio.wait({making})
            raise

    async def _make(
        self,
        deferrable: DeferrableExchange,
        exchange: HttpExchange,
        lease: NewLease,
        task: asyncio.Task[JobAnswer],
    ) -> JobRecord | None:
        try:
            with translated():
                job = await self._submitted(deferrable, exchange, lease)
        except (RequestError, StateError) as error:
            _log.warning("request_not_deferred", id=exchange.id, error=str(error))
            deferrable.remain()
            if isinstance(error, StateError):
                withdrawing = asyncio.create_task(self._withdraw(deferrable, lease))
                self.withdrawing.add(withdrawing)
                withdrawing.add_done_callback(self.withdrawing.discard)
            return None
        except BaseException:
            deferrable.remain()
            raise
        deferrable.become(self.runner.adopt(job, lease, deferrable.output, task))
        return job

    async def _submitted(
        self, deferrable: DeferrableExchange, exchange: HttpExchange, lease: NewLease
    ) -> JobRecord:
        """Raises RequestError, StateError."""
        service, principal, request = self.access.service, deferrable.principal, deferrable.request
        assert principal is not None
        assert request is not None
        deferrable.reserve(self.budget)
        webhook = await self.access.accept_webhook(webhook_of(exchange.fields), principal.tenant)
        terms = JobTerms(webhook=webhook)
        asked = JobRequest(
            request, path_of(exchange), submitted_headers(exchange, kept_headers(exchange.head))
        )
        new = replace(service.job_of(deferrable.job_id, asked, terms), model=deferrable.model)
        bodies = {new.id: b"".join(deferrable.pieces)}
        await service.submit(principal.tenant, [new], bodies, lease=lease)
        return await service.get(new.id, principal.tenant)

    async def _withdraw(self, deferrable: DeferrableExchange, lease: NewLease) -> None:
        """The store may have the job in spite of its error, and would have it run again once nobody has kept
        its lease."""
        assert deferrable.principal is not None
        with contextlib.suppress(UnknownRecord, TimeoutError):
            async with asyncio.timeout(lease.lease_s):
                while True:
                    with contextlib.suppress(StateError):
                        await self.access.service.cancel(deferrable.job_id, deferrable.principal.tenant)
                        return
                    await asyncio.sleep(_AGAIN_S)


async def _end(deferrable: DeferrableExchange, task: asyncio.Task[JobAnswer]) -> None:
    """The request is over, and was no job."""
    if not task.done():
        task.cancel()
        await asyncio.wait({task})
    if not task.cancelled():
        task.exception()  # whoever waited for it has it
    with contextlib.suppress(StateError):  # what is left is found when orphans are looked for
        await deferrable.output.drop()


def path_of(exchange: HttpExchange) -> str:
    """What was asked for, as its client wrote it."""
    query = exchange.query.decode("latin-1")
    return f"{exchange.raw_path}?{query}" if query else exchange.raw_path
