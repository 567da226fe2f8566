"""``Prefer: respond-async`` (RFC 7240) on a request for an engine: it becomes a job, and its client is
answered at once, or when the job has ended within the time it prefers to wait."""

import hashlib
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable
from dataclasses import dataclass
from typing import Any

import orjson

from gateway.api.errors import HeaderList
from gateway.api.exchange.exchange import HttpExchange
from gateway.api.jobs.forms import job_url
from gateway.api.jobs.pages import JobAccess, replayed, translated
from gateway.api.jobs.preferences import idempotency_key_of, preferences_of
from gateway.api.jobs.responses import BackgroundResponses, InBackground, refuse_background
from gateway.api.jobs.results import send_result
from gateway.api.openai.handlers import JSON, PREFER
from gateway.domain.errors import RecordNotFound
from gateway.domain.request import Principal
from gateway.jobs.service import JobRequest, JobTerms, check_lasting, new_job_id
from gateway.pipeline.client_body import ClientBody
from gateway.pipeline.job_requests import classify_job, kept_headers
from gateway.pipeline.pipeline import KeyAuthenticator


@dataclass(frozen=True)
class AsyncRequests:
    """Takes what its client prefers to be answered later."""

    keys: KeyAuthenticator
    access: JobAccess
    knows: Callable[[str], bool] = lambda name: False

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
        with translated():
            async with exchange.while_here():
                job_id, before = await self._submit(exchange, principal, body)
                await self._answer(exchange, principal, job_id, replayed(before))

    async def _submit(
        self, exchange: HttpExchange, principal: Principal, body: ClientBody
    ) -> tuple[str, bool]:
        """The job's id, and whether it was submitted before."""
        service, head = self.access.service, exchange.head
        key = idempotency_key_of(exchange.fields)
        pieces, rest = tuple(body.content.pieces), body.content.rest  # as they came: reading may change them
        request = classify_job(head, body, principal, self.knows)
        terms = JobTerms(webhook=await self.access.accept_webhook(None, principal.tenant))
        job_id = new_job_id()
        path = exchange.raw_path + (f"?{exchange.query.decode('latin-1')}" if exchange.query else "")
        new = service.job_of(job_id, JobRequest(request, path, kept_headers(head)), terms)
        stored = _HashedBody(path, pieces, rest)
        ids = await service.submit(
            principal.tenant, [new], {job_id: aiter(stored)}, key=key, fingerprint=stored.digest
        )
        return ids[0], ids[0] != job_id

    async def _answer(
        self, exchange: HttpExchange, principal: Principal, job_id: str, headers: HeaderList
    ) -> None:
        wait_s = preferences_of(exchange.fields).wait_s
        found = await self.access.service.get_many([job_id], principal.tenant)
        if not found:
            raise RecordNotFound("The job that this idempotency key stands for is no more: use a new key.")
        (job,) = found
        location = job_url(job_id).encode("ascii")
        if wait_s:
            job = await self.access.watch.ended(job, wait_s)
            if job.state.is_final:
                applied = b"respond-async, wait=%d" % wait_s
                headers += [(b"preference-applied", applied), (b"content-location", location + b"/result")]
                await send_result(self.access.service, exchange, job, headers)
                return
        headers += [(b"location", location), (b"preference-applied", b"respond-async")]
        (shown,) = await self.access.show(job)
        await exchange.reply.whole(202, JSON, orjson.dumps(shown), headers)


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
