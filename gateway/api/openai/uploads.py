"""OpenAI's Uploads API: a long file in parts."""

import re
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from typing import Annotated, Any, Literal

import orjson
from pydantic import BaseModel, ConfigDict, Field

from gateway.api.exchange.exchange import HttpExchange
from gateway.api.exchange.form_upload import FormUpload
from gateway.api.exchange.idempotency import once_key
from gateway.api.exchange.inbound import BodyLimits
from gateway.api.openai.files import FORM_BYTES, file_name, file_object, file_purpose, files_page
from gateway.api.openai.handlers import JSON, KeyedPage
from gateway.api.openai.json_bodies import read_json
from gateway.domain.errors import BadRequest, BodyTooLarge
from gateway.domain.files import LEAST_KEPT_S, MOST_KEPT_S, FileRecord
from gateway.domain.request import Principal
from gateway.domain.uploads import (
    MIME_CHARS,
    MOST_PART_BYTES,
    MOST_PARTS,
    UPLOAD_KEPT_S,
    NewUpload,
    UploadPart,
    UploadRecord,
)
from gateway.jobs.uploads import UploadService
from gateway.pipeline.pipeline import KeyAuthenticator
from gateway.storage.errors import ObjectTooLarge
from gateway.storage.uploads import UnfitParts, UploadEnded

UPLOADS = "/v1/uploads"

_MD5 = re.compile(r"[0-9a-fA-F]{32}\Z")
_PARTS_BODY_BYTES = 2 * 1024 * 1024
"""Room for the ids of as many parts as there may be."""


class ExpiresAfter(BaseModel):
    """When a file expires."""

    model_config = ConfigDict(strict=True)
    anchor: Literal["created_at"]
    seconds: Annotated[int, Field(ge=LEAST_KEPT_S, le=MOST_KEPT_S)]


class UploadBody(BaseModel):
    """Of ``POST /v1/uploads``."""

    model_config = ConfigDict(strict=True)
    bytes: Annotated[int, Field(ge=1)]
    filename: Annotated[str, Field(min_length=1)]
    mime_type: Annotated[str, Field(min_length=1, max_length=MIME_CHARS)]
    purpose: str
    expires_after: ExpiresAfter | None = None


class CompletionBody(BaseModel):
    """Of ``POST /v1/uploads/{id}/complete``."""

    model_config = ConfigDict(strict=True)
    part_ids: Annotated[list[str], Field(min_length=1, max_length=MOST_PARTS)]
    md5: str | None = None


def uploads_pages(keys: KeyAuthenticator, uploads: UploadService) -> dict[str, KeyedPage]:
    """By path."""
    handlers = {
        UPLOADS: _create,
        UPLOADS + "/{id}/parts": _add_part,
        UPLOADS + "/{id}/complete": _complete,
        UPLOADS + "/{id}/cancel": _cancel,
    }
    return {
        path: files_page(keys, {"POST": partial(_answer, partial(handler, uploads))})
        for path, handler in handlers.items()
    }


_Handler = Callable[[HttpExchange, Principal, str], Awaitable[dict[str, Any]]]


async def _answer(handler: _Handler, exchange: HttpExchange, principal: Principal, upload_id: str) -> None:
    try:
        found = await handler(exchange, principal, upload_id)
    except UploadEnded as error:
        raise BadRequest(f"{sentence(error)}.", code="upload_ended") from error
    except UnfitParts as error:
        raise BadRequest(f"{sentence(error)}.", code="invalid_parts") from error
    await exchange.reply.whole(200, JSON, orjson.dumps(found))


def sentence(error: Exception) -> str:
    """Its message, as the beginning of one."""
    text = str(error)
    return text[:1].upper() + text[1:]


async def _create(
    uploads: UploadService, exchange: HttpExchange, principal: Principal, _: str
) -> dict[str, Any]:
    body = await read_json(exchange, UploadBody)
    most_bytes, now_s = uploads.files.bounds.file_bytes, uploads.files.wall()
    if body.bytes > most_bytes:
        raise BodyTooLarge(f"A file may have {most_bytes} bytes at most.", param="bytes")
    upload = NewUpload(
        f"upload_{secrets.token_hex(16)}",
        principal.tenant,
        principal.key_id,
        file_name(body.filename),
        body.mime_type,
        file_purpose(body.purpose),
        body.bytes,
        now_s,
        now_s + UPLOAD_KEPT_S,
        None if body.expires_after is None else float(body.expires_after.seconds),
    )
    once = once_key(exchange, principal, body.model_dump_json().encode())
    return upload_object(await uploads.begin(upload, once))


async def _add_part(
    uploads: UploadService, exchange: HttpExchange, principal: Principal, upload_id: str
) -> dict[str, Any]:
    limits = BodyLimits(MOST_PART_BYTES + FORM_BYTES, rate_bytes_per_s=16 * 1024)
    form = FormUpload(exchange.fields.get(b"content-type", b""), exchange.inbound.pieces(limits), "data")
    declared = exchange.inbound.declared_bytes or 0
    if declared > limits.body_bytes:
        raise _too_large()
    try:
        part = await uploads.add(upload_id, principal.tenant, _bytes_of(form))
    except ObjectTooLarge as error:
        raise _too_large() from error
    return part_object(part)


async def _bytes_of(form: FormUpload) -> AsyncIterator[bytes]:
    async for piece in form.file():
        yield piece


async def _complete(
    uploads: UploadService, exchange: HttpExchange, principal: Principal, upload_id: str
) -> dict[str, Any]:
    body = await read_json(exchange, CompletionBody, _PARTS_BODY_BYTES)
    if body.md5 is not None and not _MD5.match(body.md5):
        raise BadRequest("'md5' must be 32 hexadecimal digits.", param="md5")
    found, file = await uploads.complete(upload_id, principal.tenant, body.part_ids, body.md5)
    return upload_object(found, file)


async def _cancel(
    uploads: UploadService, exchange: HttpExchange, principal: Principal, upload_id: str
) -> dict[str, Any]:
    return upload_object(await uploads.cancel(upload_id, principal.tenant))


def upload_object(upload: UploadRecord, file: FileRecord | None = None) -> dict[str, Any]:
    """An upload as OpenAI's SDKs read it."""
    new = upload.new
    return {
        "id": new.id,
        "object": "upload",
        "bytes": new.size_bytes,
        "created_at": int(new.created_s),
        "expires_at": int(new.expires_s),
        "filename": new.filename,
        "purpose": new.purpose.value,
        "status": upload.state.value,
        "file": None if file is None else file_object(file),
    }


def part_object(part: UploadPart) -> dict[str, Any]:
    """A part as OpenAI's SDKs read it."""
    return {
        "id": part.id,
        "object": "upload.part",
        "created_at": int(part.created_s),
        "upload_id": part.upload_id,
    }


def _too_large() -> BodyTooLarge:
    return BodyTooLarge(
        f"A part may have {MOST_PART_BYTES} bytes at most, and all parts together twice as many as announced."
    )
