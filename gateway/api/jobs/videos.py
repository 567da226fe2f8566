"""OpenAI's Videos API: make, list, show, download, remix and delete videos. Each is a job with the same id,
whose answer is the video."""

import asyncio
import hashlib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import orjson
from pydantic import BaseModel, Field

from gateway.api.errors import HeaderList
from gateway.api.exchange.exchange import HttpExchange
from gateway.api.exchange.idempotency import idempotency_key_of
from gateway.api.exchange.ranges import range_of
from gateway.api.jobs.pages import (
    JobAccess,
    jobs_page,
    page_of_jobs,
    query_of,
    remove_job,
    replayed,
    send_page,
    whole_body,
)
from gateway.api.jobs.preferences import webhook_of
from gateway.api.jobs.respond_async import submit_request
from gateway.api.jobs.results import JOB, no_result
from gateway.api.jobs.video_bodies import (
    AskedVideo,
    asked_video,
    form_with_prompt,
    is_form,
    json_with_prompt,
)
from gateway.api.jobs.video_forms import (
    NO_VIDEO,
    REMIXED_FROM,
    VIDEO_ID,
    content_type_of,
    has_content,
    new_video_id,
    video_object,
)
from gateway.api.openai.handlers import JSON, KeyedPage
from gateway.api.openai.json_bodies import read_json
from gateway.auth.scope_checks import permitted_tier
from gateway.domain.errors import (
    BadRequest,
    JobFailed,
    JobNotFinished,
    ModelNotFound,
    RecordNotFound,
    RequestError,
)
from gateway.domain.jobs import JobOutcome, JobRecord, JobState, NewJob, ObjectSlice
from gateway.domain.request import Principal, Request, Tier
from gateway.domain.surface import ENDPOINTS
from gateway.jobs.object_names import body_name
from gateway.jobs.service import DEADLINE_S, Body, check_lasting
from gateway.pipeline.client_body import BodyKind, ClientBody
from gateway.pipeline.pipeline import KeyAuthenticator
from gateway.storage.errors import ObjectMissing
from shared.protocol.routes import Route

ENDPOINT = next(each for each in ENDPOINTS if each.route == Route.VIDEOS)
VIDEOS = ENDPOINT.path
VARIANTS = ("video", "thumbnail", "spritesheet")
ASKED_BYTES = 256 * 1024
"""A video says the prompt of its request again where that stands within so much of it."""
REMIXED_BYTES = 64 * 1024 * 1024
"""Longest JSON request whose video can be remixed."""

_SIZE = re.compile(r"[1-9][0-9]{0,4}x[1-9][0-9]{0,4}\Z")
_SECONDS = re.compile(r"[1-9][0-9]{0,4}\Z")


class Remix(BaseModel):
    """What a client sends for a remix."""

    prompt: str = Field(min_length=1)


def videos_pages(
    keys: KeyAuthenticator, access: JobAccess, knows: Callable[[str], bool]
) -> dict[str, KeyedPage]:
    """By path. ``knows`` says whether there is a model or an alias of a name."""
    one, page = VIDEOS + "/{id}", partial(jobs_page, keys, access)
    return {
        VIDEOS: page({"GET": _list, "POST": _Creation(knows)}),
        one: page({"GET": _show, "DELETE": _delete}),
        f"{one}/content": page({"GET": _content}),
        f"{one}/remix": page({"POST": _remix}),
    }


@dataclass(frozen=True)
class _Creation:
    """Makes a job of a request for a video."""

    knows: Callable[[str], bool]

    async def __call__(self, access: JobAccess, exchange: HttpExchange, principal: Principal, _: str) -> None:
        check_lasting(principal)
        exchange.set_endpoint(ENDPOINT)
        content_type = exchange.fields.get(b"content-type", b"").decode("latin-1")
        if "json" not in content_type.lower() and not is_form(content_type):
            raise BadRequest("Send multipart/form-data, or application/json.", param="content-type")
        body = await exchange.body()

        def describe(request: Request) -> Mapping[str, str]:
            if not self.knows(request.model):
                message = (
                    f"The model '{request.model}' is not served here. GET /v1/models lists those that are."
                )
                raise ModelNotFound(message, param="model")
            return _notes(_asked(body, content_type))

        async with exchange.while_here():
            video_id = new_video_id()
            made = await submit_request(access, self.knows, exchange, principal, body, video_id, describe)
            await _answer_made(access, exchange, principal, made, before=made != video_id)


def _asked(body: ClientBody, content_type: str) -> AskedVideo:
    """What the request says, as far as its body was read. Raises BadRequest for what no video has."""
    if body.kind is BodyKind.JSON:
        members = {} if body.facts is None else body.facts.members
        kept = {name: members[name] for name in ("prompt", "seconds", "size") if name in members}
        asked, whole = asked_video("application/json", orjson.dumps(kept)), True
    else:
        asked, whole = asked_video(content_type, b"".join(body.content.pieces)), body.content.rest is None
    if whole and not asked.prompt:
        message = "Missing required parameter: 'prompt'."
        raise BadRequest(message, param="prompt", code="missing_required_parameter")
    if asked.seconds is not None and not _SECONDS.match(asked.seconds):
        raise BadRequest("'seconds' must be a number of whole seconds.", param="seconds")
    if asked.size is not None and not _SIZE.match(asked.size):
        raise BadRequest("'size' must be WIDTHxHEIGHT, such as 1280x720.", param="size")
    return asked


def _notes(asked: AskedVideo) -> dict[str, str]:
    """What is kept beside the request, whose body may be long."""
    given = {"seconds": asked.seconds, "size": asked.size}
    return {name: value for name, value in given.items() if value is not None}


async def _list(access: JobAccess, exchange: HttpExchange, principal: Principal, _: str) -> None:
    found, more = await page_of_jobs(access, query_of(exchange), principal, prefix=VIDEO_ID)
    await send_page(exchange, [await _shown(access, job) for job in found], more)


async def _show(access: JobAccess, exchange: HttpExchange, principal: Principal, video_id: str) -> None:
    await _answer(access, exchange, await _job_for(access, principal, video_id))


async def _delete(access: JobAccess, exchange: HttpExchange, principal: Principal, video_id: str) -> None:
    job = await _job_for(access, principal, video_id)
    await remove_job(access, exchange, principal, job)
    body = orjson.dumps({"id": job.id, "object": "video.deleted", "deleted": True})
    await exchange.reply.whole(200, JSON, body)


async def _content(access: JobAccess, exchange: HttpExchange, principal: Principal, video_id: str) -> None:
    variant = query_of(exchange).get("variant", VARIANTS[0])
    if variant not in VARIANTS:
        raise BadRequest(f"'variant' must be one of {', '.join(VARIANTS)}.", param="variant")
    job = await _job_for(access, principal, video_id)
    outcome = job.outcome
    if outcome is None:
        raise JobNotFinished(f"The video {job.id} is {job.state.value}: it has no content yet.")
    if not has_content(job):
        raise _no_content(job, outcome)
    if variant != VARIANTS[0]:
        raise RecordNotFound(f"The engine gave no {variant} of this video.", param="variant")
    await whole_body(exchange)
    etag = b'"%b"' % job.id.encode("ascii")
    part = range_of(exchange.fields, outcome.result_bytes, etag)
    start, stop = part or (0, outcome.result_bytes)
    headers: HeaderList = [
        (b"content-type", content_type_of(outcome).encode("latin-1")),
        (b"content-length", b"%d" % (stop - start)),
        (b"accept-ranges", b"bytes"),
        (b"etag", etag),
        (b"x-content-type-options", b"nosniff"),
        (JOB, job.id.encode("ascii")),
    ]
    if part is not None:
        headers.append((b"content-range", b"bytes %d-%d/%d" % (start, stop - 1, outcome.result_bytes)))
    async with exchange.while_here():
        await _send(access, exchange, job, (start, stop), (206 if part else 200, headers))


def _no_content(job: JobRecord, outcome: JobOutcome) -> RequestError:
    if job.state is not JobState.SUCCEEDED:
        return no_result(job, outcome)
    return JobFailed(NO_VIDEO["message"], code="no_video")


async def _send(
    access: JobAccess,
    exchange: HttpExchange,
    job: JobRecord,
    part: tuple[int, int],
    head: tuple[int, HeaderList],
) -> None:
    if exchange.method == "HEAD":
        await exchange.reply.start(*head)
        await exchange.reply.end()
        return
    pieces = access.service.result(job, *part)
    first = await anext(pieces, b"")  # what is gone is known before the head goes out
    await exchange.reply.start(*head, body_follows=True)
    await exchange.reply.write(first)
    async for piece in pieces:
        await exchange.reply.write(piece)
    await exchange.reply.end()


async def _remix(access: JobAccess, exchange: HttpExchange, principal: Principal, video_id: str) -> None:
    check_lasting(principal)
    source = await _job_for(access, principal, video_id)
    prompt = (await read_json(exchange, Remix)).prompt
    if not has_content(source):
        raise JobNotFinished("Only a video that is completed can be remixed.")
    if principal.scopes is not None:
        permitted_tier(principal.scopes, source.new.model, Route.VIDEOS.value, Tier(source.new.tier))
    new_id, key = new_video_id(), idempotency_key_of(exchange.fields)
    async with exchange.while_here():
        webhook = await access.accept_webhook(webhook_of(exchange.fields), principal.tenant)
        new = _remixed(access, source, new_id, principal, webhook)
        body = await _with_prompt(access, source, prompt)
        said = f"POST {VIDEOS}/{source.id}/remix\n{prompt}".encode()
        (made,) = await access.service.submit(
            principal.tenant,
            [new],
            {new_id: body},
            key=key,
            fingerprint=lambda: hashlib.sha256(said).digest(),
        )
        await _answer_made(access, exchange, principal, made, before=made != new_id)


def _remixed(
    access: JobAccess, source: JobRecord, new_id: str, principal: Principal, webhook: str | None
) -> NewJob:
    """The source's job with another id."""
    return replace(
        source.new,
        id=new_id,
        key_id=principal.key_id,
        body=ObjectSlice(body_name(new_id)),
        deadline_s=access.service.wall() + DEADLINE_S,
        not_before_s=0.0,
        webhook=webhook,
        metadata={**(source.new.metadata or {}), REMIXED_FROM: source.id},
    )


async def _with_prompt(access: JobAccess, source: JobRecord, prompt: str) -> Body:
    """The source's request with another prompt. Raises RecordNotFound."""
    content_type = _content_type(source)
    if is_form(content_type):
        return form_with_prompt(content_type, access.service.body_pieces(source), prompt)
    data = await access.service.body(source, REMIXED_BYTES)
    if data is None:
        raise RecordNotFound("The request of the source video is gone, or too long to be made again.")
    return await asyncio.to_thread(json_with_prompt, data, prompt)


async def _job_for(access: JobAccess, principal: Principal, video_id: str) -> JobRecord:
    """Raises RecordNotFound, UnknownRecord."""
    if not video_id.startswith(VIDEO_ID):
        raise RecordNotFound(f"There is no video {video_id[:64]!r}.", param="video_id")
    return await access.job_for(principal, video_id)


def _content_type(job: JobRecord) -> str:
    return next((value for name, value in job.new.headers if name == "content-type"), "application/json")


async def _shown(access: JobAccess, job: JobRecord) -> dict[str, Any]:
    try:
        data = b"".join([piece async for piece in access.service.body_pieces(job, ASKED_BYTES)])
    except ObjectMissing:
        data = b""
    asked, notes = asked_video(_content_type(job), data), job.new.metadata or {}
    known = AskedVideo(asked.prompt, notes.get("seconds", asked.seconds), notes.get("size", asked.size))
    return video_object(job, known)


async def _answer(
    access: JobAccess, exchange: HttpExchange, job: JobRecord, headers: HeaderList | None = None
) -> None:
    await exchange.reply.whole(200, JSON, orjson.dumps(await _shown(access, job)), headers)


async def _answer_made(
    access: JobAccess, exchange: HttpExchange, principal: Principal, video_id: str, *, before: bool
) -> None:
    found = await access.service.get_many([video_id], principal.tenant)
    if not found:
        raise RecordNotFound("The video that this idempotency key stands for is no more: use a new key.")
    await _answer(access, exchange, found[0], replayed(before))
