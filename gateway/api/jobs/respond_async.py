"""``Prefer: respond-async`` (RFC 7240) on a request for an engine: it becomes a job, and its client is
answered at once, or when the job has ended within the time it prefers to wait."""

import asyncio
import hashlib
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Mapping
from dataclasses import dataclass
from time import monotonic
from typing import Any

import orjson

from gateway.api.errors import HeaderList
from gateway.api.exchange.exchange import HttpExchange
from gateway.api.exchange.idempotency import IDEMPOTENCY_KEY, idempotency_key_of
from gateway.api.exchange.request_tracing import submitted_headers
from gateway.api.jobs.deferral import Deferral, path_of
from gateway.api.jobs.forms import job_url
from gateway.api.jobs.pages import JobAccess, replayed, translated
from gateway.api.jobs.preferences import preferences_of, webhook_of
from gateway.api.jobs.responses import BackgroundResponses, InBackground, refuse_background
from gateway.api.jobs.results import send_result
from gateway.api.openai.handlers import JSON, PREFER
from gateway.domain.errors import RecordNotFound
from gateway.domain.jobs import JobRecord, NewLease
from gateway.domain.request import Principal, Request
from gateway.jobs.service import JobRequest, JobTerms, check_lasting, new_job_id
from gateway.pipeline.client_body import ClientBody
from gateway.pipeline.job_requests import classify_job, classify_unhurried, kept_headers
from gateway.pipeline.pipeline import KeyAuthenticator


@dataclass(frozen=True)
class AsyncRequests:
    """Takes what its client prefers to be answered later."""

    keys: KeyAuthenticator
    access: JobAccess
    knows: Callable[[str], bool] = lambda name: False
    deferral: Deferral | None = None
    """What runs jobs in this process; None: it runs none."""
    clock: Callable[[], float] = monotonic

    def takes(self, exchange: HttpExchange) -> bool:
        """Whether the request becomes a job. Others than POST do not: they are asked for again instead."""
        fields = exchange.fields
        return PREFER in fields and exchange.method == "POST" and preferences_of(fields).respond_async

    async def in_background(self, exchange: HttpExchange, answer: Coroutine[Any, Any, None]) -> None:
        """``answer``, unless the request asks for a background response. Raises RequestError."""
        exchange.inspect = refuse_background
        try:
            await answer
        except InBackground as found:
            body = found.body
        else:
            return
        await BackgroundResponses(self.access, self.knows)(exchange, body)

    async def __call__(self, exchange: HttpExchange) -> None:
        """Raises RequestError."""
        principal = await exchange.identify(self.keys)
        check_lasting(principal)
        body = await exchange.body()
        wait_s = preferences_of(exchange.fields).wait_s
        deferral = self.deferral if wait_s else None
        if deferral is not None and wait_s and deferral.can_take(body):
            if IDEMPOTENCY_KEY not in exchange.fields:
                await self._defer(deferral, exchange, body, wait_s)
                return
        else:
            deferral = None
        with translated():
            async with exchange.while_here():
                job_id, before, running = await self._submit(exchange, principal, body, deferral)
                await self._answer(exchange, principal, job_id, replayed(before), running)

    async def _defer(
        self, deferral: Deferral, exchange: HttpExchange, body: ClientBody, wait_s: float
    ) -> None:
        """Answer it now, or after ``wait_s`` seconds by the job that it is then."""
        job = await deferral(exchange, body, wait_s)
        if job is not None:
            with translated():
                await self._tell(exchange, job, [])

    async def _submit(
        self, exchange: HttpExchange, principal: Principal, body: ClientBody, deferral: Deferral | None
    ) -> tuple[str, bool, asyncio.Task[None] | None]:
        """The job's id, whether it was submitted before, and its run if it runs here already, as it does with
        a ``deferral``."""
        lease, job_id = None if deferral is None else deferral.runner.new_lease(), new_job_id()
        made = await submit_request(self.access, self.knows, exchange, principal, body, job_id, lease=lease)
        running = None
        if lease is not None and deferral is not None and made == job_id:
            running = deferral.runner.begin(await self.access.service.get(job_id, principal.tenant), lease)
        return made, made != job_id, running

    async def _answer(
        self,
        exchange: HttpExchange,
        principal: Principal,
        job_id: str,
        headers: HeaderList,
        running: asyncio.Task[None] | None,
    ) -> None:
        wait_s = preferences_of(exchange.fields).wait_s
        until_s = self.clock() + (wait_s or 0.0)
        if running is not None:
            await asyncio.wait({running}, timeout=wait_s)  # sooner than the store would tell
        found = await self.access.service.get_many([job_id], principal.tenant)
        if not found:
            raise RecordNotFound("The job that this idempotency key stands for is no more: use a new key.")
        (job,) = found
        if wait_s:
            job = await self.access.watch.ended(job, max(0.0, until_s - self.clock()))
            if job.state.is_final:
                place = job_url(job_id).encode("ascii") + b"/result"
                headers += [(b"preference-applied", _applied(wait_s)), (b"content-location", place)]
                await send_result(self.access.service, exchange, job, headers)
                return
        await self._tell(exchange, job, headers)

    async def _tell(self, exchange: HttpExchange, job: JobRecord, headers: HeaderList) -> None:
        """The request is this job now."""
        applied = _applied(preferences_of(exchange.fields).wait_s)
        headers += [(b"location", job_url(job.id).encode("ascii")), (b"preference-applied", applied)]
        (shown,) = await self.access.show(job)
        await exchange.reply.whole(202, JSON, orjson.dumps(shown), headers)


def _applied(wait_s: float | None) -> bytes:
    return b"respond-async, wait=%d" % wait_s if wait_s else b"respond-async"


async def submit_request(
    access: JobAccess,
    knows: Callable[[str], bool],
    exchange: HttpExchange,
    principal: Principal,
    body: ClientBody,
    job_id: str,
    describe: Callable[[Request], Mapping[str, str] | None] = lambda request: None,
    *,
    lease: NewLease | None = None,
) -> str:
    """Make the request of an exchange, whose endpoint is set, a job; its id, which is another than ``job_id``
    where it was submitted before. ``describe`` gives the notes of the job, and may refuse the request. With a
    ``lease`` it is for the holder of that to run at once. To be called within
    :meth:`HttpExchange.while_here`. Raises RequestError, StateError."""
    service, head = access.service, exchange.head
    key = idempotency_key_of(exchange.fields)
    pieces, rest = tuple(body.content.pieces), body.content.rest  # as they came: reading may change them
    classified = classify_job if lease is None else classify_unhurried
    request = classified(head, body, principal, knows)
    metadata = describe(request)
    webhook = await access.accept_webhook(webhook_of(exchange.fields), principal.tenant)
    terms = JobTerms(webhook=webhook, metadata=metadata)
    path = path_of(exchange)
    headers = submitted_headers(exchange, kept_headers(head))
    new = service.job_of(job_id, JobRequest(request, path, headers), terms)
    stored = _HashedBody(path, pieces, rest)
    ids = await service.submit(
        principal.tenant,
        [new],
        {job_id: aiter(stored)},
        key=key,
        fingerprint=stored.digest,
        lease=lease,
    )
    return ids[0]


class _HashedBody:
    """A body as it passes, and the digest of what has passed."""

    def __init__(self, path: str, pieces: Iterable[bytes], rest: AsyncIterator[bytes] | None) -> None:
        self._hash = hashlib.sha256(f"POST {path}\n".encode("latin-1"))
        self._pieces, self._rest = pieces, rest

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for piece in self._pieces:
            self._hash.update(piece)
            yield piece
        if self._rest is not None:
            async for piece in self._rest:
                self._hash.update(piece)
                yield piece

    def digest(self) -> bytes:
        return self._hash.digest()
