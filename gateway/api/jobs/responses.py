"""OpenAI's background responses: ``POST /v1/responses`` with ``"background": true``, and what clients do with
them afterwards. Each is a job of its own, with the same id."""

import asyncio
import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any
from urllib.parse import parse_qs

import orjson

from gateway.api.errors import HeaderList
from gateway.api.exchange.exchange import HttpExchange
from gateway.api.exchange.idempotency import idempotency_key_of
from gateway.api.exchange.request_tracing import submitted_headers
from gateway.api.jobs.pages import JobAccess, jobs_page, remove_job, replayed, translated, whole_body
from gateway.api.jobs.preferences import webhook_of
from gateway.api.jobs.response_events import ResponseFollower
from gateway.api.jobs.submission import read_metadata
from gateway.api.openai.handlers import JSON, KeyedPage
from gateway.domain.errors import BadRequest, RecordNotFound
from gateway.domain.jobs import JobRecord
from gateway.domain.request import Principal
from gateway.domain.webhooks import RESPONSE_ID
from gateway.jobs.responses import (
    RESPONSES,
    Json,
    NumberedEvents,
    engine_body,
    final_response,
    new_response_id,
    response_object,
)
from gateway.jobs.service import JobRequest, JobTerms, check_lasting
from gateway.pipeline.bodies.facts import read_facts
from gateway.pipeline.client_body import ClientBody, wrong_type
from gateway.pipeline.job_requests import classify_job, kept_headers
from gateway.pipeline.pipeline import KeyAuthenticator

CANCELLED_WITHIN_S = 15.0
"""So long a client that cancels waits for the end; then it gets the response as it is."""
ASKED_BYTES = 256 * 1024
"""A response that has not ended says again what was asked for in requests within this."""


class InBackground(Exception):
    """A request turned out to be one for the background. It passes through what was begun for it."""

    def __init__(self, body: ClientBody) -> None:
        super().__init__("the request is for the background")
        self.body = body


def refuse_background(body: ClientBody) -> None:
    """To be called with the body of a request for ``/v1/responses``. Raises InBackground, BadRequest."""
    if body.facts is None:
        prefix = body.content.prefix
        if b"background" not in prefix and b"\\u" not in prefix:
            return
        body.facts = read_facts(prefix)
    if body.facts.members.get("background") is True:
        raise InBackground(body)


@dataclass(frozen=True)
class BackgroundResponses:
    """Makes jobs of requests for the background."""

    access: JobAccess
    knows: Callable[[str], bool] = lambda name: False

    async def __call__(self, exchange: HttpExchange, body: ClientBody) -> None:
        """Raises RequestError."""
        principal = exchange.principal
        assert principal is not None
        check_lasting(principal)
        with translated():
            async with exchange.while_here():
                members = {} if body.facts is None else body.facts.members
                job, asked, before = await self._submit(exchange, principal, body, members)
                headers = replayed(before)
                if members.get("stream") is True:
                    await _stream(self.access, exchange, job, asked, -1, headers)
                else:
                    await _answer(self.access, exchange, job, asked, headers)

    async def _submit(
        self, exchange: HttpExchange, principal: Principal, body: ClientBody, members: Mapping[str, Any]
    ) -> tuple[JobRecord, Json, bool]:
        """The job, what it asks for, and whether it was submitted before."""
        service, head = self.access.service, exchange.head
        if members.get("store") is not None and members["store"] is not True:
            raise BadRequest("A background response is stored: 'store' cannot be false.", param="store")
        if not isinstance(members.get("stream"), bool | None):
            raise wrong_type("stream", "true or false", members["stream"])
        key, metadata = idempotency_key_of(exchange.fields), read_metadata(members.get("metadata"))
        data = b"".join(body.content.pieces)
        request = classify_job(head, body, principal, self.knows)
        webhook = await self.access.accept_webhook(webhook_of(exchange.fields), principal.tenant)
        terms, job_id = JobTerms(webhook=webhook, metadata=metadata), new_response_id()
        headers = submitted_headers(exchange, kept_headers(head))
        new = service.job_of(job_id, JobRequest(request, RESPONSES, headers), terms)
        stored = await asyncio.to_thread(engine_body, data)
        ids = await service.submit(
            principal.tenant,
            [new],
            {job_id: stored},
            key=key,
            fingerprint=lambda: hashlib.sha256(b"POST /v1/responses\n" + data).digest(),
        )
        found = await service.get_many(ids, principal.tenant)
        if not found:
            raise RecordNotFound("The response that this idempotency key stands for is no more.")
        return found[0], await _asked(self.access, found[0]), ids[0] != job_id


def responses_pages(keys: KeyAuthenticator, access: JobAccess) -> dict[str, KeyedPage]:
    """By path."""
    one, page = RESPONSES + "/{id}", partial(jobs_page, keys, access)
    return {one: page({"GET": _show, "DELETE": _delete}), f"{one}/cancel": page({"POST": _cancel})}


async def _show(access: JobAccess, exchange: HttpExchange, principal: Principal, response_id: str) -> None:
    query = {name: values[-1] for name, values in parse_qs(exchange.query.decode("latin-1")).items()}
    stream, after = _is_true(query.get("stream")), query.get("starting_after")
    if after is not None and not stream:
        raise BadRequest("'starting_after' goes with 'stream=true'.", param="starting_after")
    if after is not None and (not after.isascii() or not after.isdecimal() or len(after) > 18):
        raise BadRequest("'starting_after' must be the number of an event.", param="starting_after")
    job = await _job_for(access, principal, response_id)
    asked = await _asked(access, job)
    if not stream:
        await _answer(access, exchange, job, asked)
        return
    await whole_body(exchange)  # behind it, its client can be seen to leave
    async with exchange.while_here():
        await _stream(access, exchange, job, asked, -1 if after is None else int(after))


async def _cancel(access: JobAccess, exchange: HttpExchange, principal: Principal, response_id: str) -> None:
    job = await _job_for(access, principal, response_id)
    await whole_body(exchange)
    job = await access.service.cancel(job.id, principal.tenant)
    async with exchange.while_here():
        job = await access.watch.ended(job, CANCELLED_WITHIN_S)
        await _answer(access, exchange, job, await _asked(access, job))


async def _delete(access: JobAccess, exchange: HttpExchange, principal: Principal, response_id: str) -> None:
    job = await _job_for(access, principal, response_id)
    await remove_job(access, exchange, principal, job)
    body = orjson.dumps({"id": job.id, "object": "response", "deleted": True})
    await exchange.reply.whole(200, JSON, body)


async def _job_for(access: JobAccess, principal: Principal, response_id: str) -> JobRecord:
    """Raises RecordNotFound, UnknownRecord."""
    if not response_id.startswith(RESPONSE_ID):
        raise RecordNotFound(_NOT_OURS.format(response_id[:64]), param="response_id")
    return await access.job_for(principal, response_id)


_NOT_OURS = (
    "There is no background response {!r}. Responses that an engine stores itself are at "
    "/engines/{{model}}/v1/responses/{{id}}."
)


async def _asked(access: JobAccess, job: JobRecord) -> Json:
    """Members of its request. One that is long or gone has none."""
    body = await access.service.body(job, ASKED_BYTES)
    found = {} if body is None else orjson.loads(body)
    return found if isinstance(found, dict) else {}


async def _response(access: JobAccess, asked: Json, job: JobRecord) -> Json:
    if not job.state.is_final:
        return response_object(job, asked)
    return final_response(job, asked, await access.service.response_end(job))


async def _answer(
    access: JobAccess,
    exchange: HttpExchange,
    job: JobRecord,
    asked: Json,
    headers: HeaderList | None = None,
) -> None:
    shown = orjson.dumps(await _response(access, asked, job))
    await exchange.reply.whole(200, JSON, shown, headers or [])


async def _stream(
    access: JobAccess,
    exchange: HttpExchange,
    job: JobRecord,
    asked: Json,
    after: int,
    headers: HeaderList | None = None,
) -> None:
    if job.state.is_final and job.outcome is not None and job.outcome.result is not None:
        await access.service.response_end(job)  # what is gone is known before the head goes out
    follow = ResponseFollower(access.output, access.watch, NumberedEvents(job, asked, after))
    await exchange.reply.start_events(headers)
    if exchange.method != "HEAD":
        async for piece in follow(job, partial(_response, access, asked)):
            if piece:
                await exchange.reply.write(piece)
    await exchange.reply.end()


def _is_true(text: str | None) -> bool:
    """Raises BadRequest."""
    if text not in (None, "true", "false", "True", "False", "1", "0"):
        raise BadRequest("'stream' must be true or false.", param="stream")
    return text in ("true", "True", "1")
