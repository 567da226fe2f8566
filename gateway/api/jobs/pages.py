"""``/v1/jobs``: submit, list, show, follow, cancel and retry jobs of the key's tenant."""

import hashlib
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any
from urllib.parse import parse_qs

import orjson

from gateway.api.errors import HeaderList
from gateway.api.exchange.exchange import HttpExchange
from gateway.api.exchange.idempotency import idempotency_key_of
from gateway.api.exchange.request_tracing import submitted_headers
from gateway.api.jobs.events import EventsPosition, JobEvents
from gateway.api.jobs.forms import JOBS, job_object, job_url
from gateway.api.jobs.preferences import preferences_of
from gateway.api.jobs.results import send_result
from gateway.api.jobs.submission import prepare_jobs
from gateway.api.openai.handlers import JSON, KeyedPage
from gateway.api.openai.list_queries import read_limit, read_order
from gateway.domain.errors import (
    BadRequest,
    JobNotFailed,
    JobNotFinished,
    KeyReused,
    QueueFull,
    RecordNotFound,
    StorageFull,
    UnsupportedEncoding,
)
from gateway.domain.jobs import JobRecord, JobState
from gateway.domain.request import Principal
from gateway.jobs.output_reader import OutputReader
from gateway.jobs.service import JobService, check_lasting
from gateway.jobs.watch import JobWatch
from gateway.jobs.webhooks.service import AcceptWebhook
from gateway.pipeline.pipeline import KeyAuthenticator
from gateway.storage.errors import BadValue, ObjectMissing, ObjectStorageFull, RecordError, UnknownRecord
from gateway.storage.jobs import IdempotencyConflict, ResultsFull, TooManyJobs

ROUTE = "jobs"
"""What logs, metrics and scopes call these paths."""
LIST_MOST = 100
LISTED = 20
"""Without ``limit``."""
FULL_RETRY_S = 60.0
REMOVED_WITHIN_S = 60.0
"""So long a client that deletes a job which runs waits for its end."""
_SUBMISSION_HEADERS = ("x-trunkline-", "x-llm-d-", "traceparent", "tracestate")
"""Those of a submission that count for each of its jobs begin so."""


@dataclass(frozen=True)
class JobAccess:
    """What the handlers need."""

    service: JobService
    output: OutputReader
    watch: JobWatch
    accept_webhook: AcceptWebhook

    async def show(self, *jobs: JobRecord) -> list[dict[str, Any]]:
        completions = await self.service.completions(jobs)
        return [job_object(job, completions) for job in jobs]

    async def show_whole(self, job: JobRecord) -> dict[str, Any]:
        """With what there is so far of its answer."""
        return job_object(job, await self.service.completions([job]), await self.service.preview(job))

    async def job_for(self, principal: Principal, job_id: str) -> JobRecord:
        """A key with scopes for routes sees the jobs that it submitted itself. Raises UnknownRecord."""
        job = await self.service.get(job_id, principal.tenant)
        own = key_of(principal)
        if own is not None and job.new.key_id != own:
            raise UnknownRecord(f"there is no job {job_id}")
        return job


_Handler = Callable[[JobAccess, HttpExchange, Principal, str], Awaitable[None]]


def jobs_page(keys: KeyAuthenticator, access: JobAccess, methods: Mapping[str, _Handler]) -> KeyedPage:
    """One of the paths of jobs, and of responses that are."""
    return KeyedPage(ROUTE, keys, translated, {name: partial(each, access) for name, each in methods.items()})


def jobs_pages(keys: KeyAuthenticator, access: JobAccess) -> dict[str, KeyedPage]:
    """By path."""
    one = JOBS + "/{id}"
    page = partial(jobs_page, keys, access)
    return {
        JOBS: page({"GET": _list, "POST": _submit}),
        one: page({"GET": _show}),
        f"{one}/result": page({"GET": _result}),
        f"{one}/events": page({"GET": _events}),
        f"{one}/cancel": page({"POST": _cancel}),
        f"{one}/retry": page({"POST": _retry}),
    }


async def _submit(access: JobAccess, exchange: HttpExchange, principal: Principal, _: str) -> None:
    check_lasting(principal)
    key = idempotency_key_of(exchange.fields)
    check_json(exchange)
    data = await whole_body(exchange)
    async with exchange.while_here():
        headers = _common_headers(exchange)
        prepared = await prepare_jobs(access.service, principal, data, headers, access.accept_webhook)
        ids = await access.service.submit(
            principal.tenant,
            prepared.jobs,
            prepared.bodies,
            key=key,
            fingerprint=lambda: hashlib.sha256(b"POST /v1/jobs\n" + data).digest(),
        )
        made = await access.service.get_many(ids, principal.tenant)
        shown = await access.show(*made)
    said = replayed(set(ids).isdisjoint(prepared.bodies))
    if prepared.many:
        await _json(exchange, {"object": "list", "data": shown}, 202, said)
        return
    if not shown:
        raise RecordNotFound("The job that this idempotency key stands for is no more: use a new key.")
    said.append((b"location", job_url(ids[0]).encode("ascii")))
    await _json(exchange, shown[0], 202, said)


async def _list(access: JobAccess, exchange: HttpExchange, principal: Principal, _: str) -> None:
    query = query_of(exchange)
    states = _states(query.get("status"))
    found, more = await page_of_jobs(access, query, principal, group=query.get("group"), states=states)
    await send_page(exchange, await access.show(*found), more)


async def page_of_jobs(
    access: JobAccess,
    query: Mapping[str, str],
    principal: Principal,
    *,
    group: str | None = None,
    prefix: str | None = None,
    states: Sequence[JobState] = (),
) -> tuple[Sequence[JobRecord], bool]:
    """Jobs of a page that ``query`` asks for with ``after``, ``limit`` and ``order``, and whether there are
    more. Raises BadRequest, UnknownRecord."""
    limit, order = read_limit(query, LISTED, LIST_MOST), read_order(query)
    found = await access.service.list(
        principal.tenant,
        key_id=key_of(principal),
        group=group,
        prefix=prefix,
        states=states,
        after=query.get("after"),
        limit=limit + 1,
        newest_first=order == "desc",
    )
    return found[:limit], len(found) > limit


async def send_page(exchange: HttpExchange, shown: Sequence[Mapping[str, Any]], more: bool) -> None:
    """A page of objects, as OpenAI's SDKs read them."""
    first, last = (shown[0]["id"], shown[-1]["id"]) if shown else (None, None)
    page = {"object": "list", "data": shown, "first_id": first, "last_id": last, "has_more": more}
    await _json(exchange, page)


async def _show(access: JobAccess, exchange: HttpExchange, principal: Principal, job_id: str) -> None:
    job = await access.job_for(principal, job_id)
    wait_s = preferences_of(exchange.fields).wait_s
    if wait_s is not None:
        await whole_body(exchange)  # behind it, its client can be seen to leave
        async with exchange.while_here():
            job = await access.watch.ended(job, wait_s)
    await _json(exchange, await access.show_whole(job), 200, waited(wait_s))


async def _result(access: JobAccess, exchange: HttpExchange, principal: Principal, job_id: str) -> None:
    job = await access.job_for(principal, job_id)
    wait_s = preferences_of(exchange.fields).wait_s
    await whole_body(exchange)
    async with exchange.while_here():
        if wait_s is not None:
            job = await access.watch.ended(job, wait_s)
        await send_result(access.service, exchange, job, waited(wait_s))


async def _events(access: JobAccess, exchange: HttpExchange, principal: Principal, job_id: str) -> None:
    last = exchange.fields.get(b"last-event-id", b"").decode("latin-1").strip()
    position = EventsPosition.read(last or query_of(exchange).get("starting_after", ""))
    job = await access.job_for(principal, job_id)
    events = JobEvents(access.output, access.watch, position, access.service.preview)

    async def show(each: JobRecord) -> Mapping[str, Any]:
        return (await access.show(each))[0]

    await whole_body(exchange)
    async with exchange.while_here():
        await exchange.reply.start_events()
        if exchange.method != "HEAD":
            async for piece in events(job, show):
                await exchange.reply.write(piece)
        await exchange.reply.end()


async def _cancel(access: JobAccess, exchange: HttpExchange, principal: Principal, job_id: str) -> None:
    await access.job_for(principal, job_id)
    job = await access.service.cancel(job_id, principal.tenant)
    await _json(exchange, (await access.show(job))[0])


async def _retry(access: JobAccess, exchange: HttpExchange, principal: Principal, job_id: str) -> None:
    await access.job_for(principal, job_id)
    job = await access.service.retry(job_id, principal.tenant)
    await _json(exchange, (await access.show(job))[0])


@contextmanager
def translated() -> Iterator[None]:
    """What the store refuses becomes what the client reads."""
    try:
        yield
    except UnknownRecord as error:
        raise RecordNotFound(_sentence(error)) from error
    except TooManyJobs as error:
        raise QueueFull(_sentence(error), code="too_many_jobs", retry_after_s=FULL_RETRY_S) from error
    except ResultsFull as error:
        raise StorageFull(_sentence(error)) from error
    except IdempotencyConflict as error:
        raise KeyReused(_sentence(error), param="idempotency-key") from error
    except BadValue:
        raise
    except RecordError as error:
        raise JobNotFailed(_sentence(error)) from error
    except ObjectStorageFull as error:
        raise StorageFull("There is no room for more jobs now.") from error
    except ObjectMissing as error:
        raise RecordNotFound("The result of this job is gone.") from error


def _sentence(error: Exception) -> str:
    text = str(error)
    return f"{text[:1].upper()}{text[1:]}."


def key_of(principal: Principal) -> str | None:
    """Only jobs of this key are shown to it; None: it sees those of its whole tenant."""
    scopes = principal.scopes
    if scopes is None or (scopes.routes is not None and ROUTE in scopes.routes):
        return None
    return principal.key_id


async def remove_job(access: JobAccess, exchange: HttpExchange, principal: Principal, job: JobRecord) -> None:
    """Take away a job with all it has; one that runs is cancelled first. Raises JobNotFinished where that
    takes too long."""
    await whole_body(exchange)  # behind it, its client can be seen to leave
    if not job.state.is_final:
        job = await access.service.cancel(job.id, principal.tenant)
        async with exchange.while_here():
            job = await access.watch.ended(job, REMOVED_WITHIN_S)
        if not job.state.is_final:
            raise JobNotFinished("It is being cancelled: delete it again in a moment.")
    await access.service.remove(job.id, principal.tenant)


def check_json(exchange: HttpExchange) -> None:
    """Raises UnsupportedEncoding, BadRequest."""
    fields = exchange.fields
    if fields.get(b"content-encoding", b"identity").strip().lower() not in (b"identity", b""):
        raise UnsupportedEncoding("Compressed bodies are not accepted here.", param="content-encoding")
    if b"json" not in fields.get(b"content-type", b"").lower():
        raise BadRequest("Send JSON, with content-type application/json.", param="content-type")


async def whole_body(exchange: HttpExchange) -> bytes:
    """Raises RequestError."""
    inbound = exchange.inbound
    return b"".join(await inbound.read_pieces(lambda chunk: False, inbound.declared_bytes))


def waited(wait_s: float | None) -> HeaderList:
    return [] if wait_s is None else [(b"preference-applied", b"wait=%d" % wait_s)]


def replayed(before: bool) -> HeaderList:
    """For what was submitted ``before`` with the same idempotency key."""
    return [(b"idempotent-replayed", b"true")] if before else []


def _common_headers(exchange: HttpExchange) -> Sequence[tuple[str, str]]:
    fields = ((name.decode("latin-1"), value.decode("latin-1")) for name, value in exchange.fields.items())
    common = tuple((name, value) for name, value in fields if name.startswith(_SUBMISSION_HEADERS))
    return submitted_headers(exchange, common)


def query_of(exchange: HttpExchange) -> dict[str, str]:
    return {name: values[-1] for name, values in parse_qs(exchange.query.decode("latin-1")).items()}


def _states(text: str | None) -> Sequence[JobState]:
    """Of ``status=queued,running``. Raises BadRequest."""
    if text is None:
        return ()
    try:
        return [JobState(each.strip()) for each in text.split(",")]
    except ValueError:
        known = ", ".join(JobState)
        raise BadRequest(f"'status' must be one or more of {known}.", param="status") from None


async def _json(
    exchange: HttpExchange, value: Mapping[str, Any], status: int = 200, headers: HeaderList | None = None
) -> None:
    await exchange.reply.whole(status, JSON, orjson.dumps(value), headers)
