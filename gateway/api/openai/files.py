"""OpenAI's Files API: upload, list, show, read and delete files of the key's tenant."""

import re
import secrets
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any
from urllib.parse import parse_qs, quote

import orjson

from gateway.api.exchange.exchange import HttpExchange
from gateway.api.exchange.form_upload import FormUpload
from gateway.api.exchange.idempotency import idempotency_key_of
from gateway.api.exchange.inbound import BodyLimits
from gateway.api.openai.handlers import JSON, KeyedHandler, KeyedPage
from gateway.api.openai.list_queries import read_limit, read_order
from gateway.domain.errors import (
    BadRequest,
    BodyTooLarge,
    Forbidden,
    KeyReused,
    QuotaExceeded,
    RecordNotFound,
    StorageFull,
)
from gateway.domain.files import (
    BATCH_KEPT_S,
    FILENAME_CHARS,
    LEAST_KEPT_S,
    MOST_KEPT_S,
    UPLOADED,
    FilePurpose,
    FileRecord,
    NewFile,
)
from gateway.domain.request import Principal
from gateway.jobs.files import FileService
from gateway.pipeline.pipeline import KeyAuthenticator
from gateway.storage.errors import ObjectMissing, ObjectStorageFull, ObjectTooLarge, UnknownRecord
from gateway.storage.files import TooManyBytes
from gateway.storage.submissions import IdempotencyConflict

FILES = "/v1/files"
ROUTE = "files"
"""What logs, metrics and scopes call these paths."""

FORM_BYTES = 64 * 1024
"""Of a form, beside its file."""
LIST_MOST = 10_000

_CONTROL = re.compile(r"[\x00-\x1f\x7f]")


def files_pages(keys: KeyAuthenticator, files: FileService) -> dict[str, KeyedPage]:
    """By path."""
    page = partial(files_page, keys)
    create, show = partial(_create, files), partial(_show, files)
    return {
        FILES: page({"GET": partial(_list, files), "POST": create}),
        FILES + "/{id}": page({"GET": show, "DELETE": partial(_delete, files)}),
        FILES + "/{id}/content": page({"GET": partial(_content, files)}),
    }


def files_page(keys: KeyAuthenticator, methods: Mapping[str, KeyedHandler]) -> KeyedPage:
    """One of the paths of files and uploads, for keys that may use files."""
    return KeyedPage(ROUTE, keys, _translated, {name: _allowed(each) for name, each in methods.items()})


def _allowed(handler: KeyedHandler) -> KeyedHandler:
    async def answer(exchange: HttpExchange, principal: Principal, file_id: str) -> None:
        routes = principal.scopes.routes if principal.scopes is not None else None
        if routes is not None and ROUTE not in routes:
            raise Forbidden(f"This key may not use files; it may use {', '.join(sorted(routes))}.")
        await handler(exchange, principal, file_id)

    return answer


@contextmanager
def _translated() -> Iterator[None]:
    try:
        yield
    except UnknownRecord as error:
        raise RecordNotFound(f"{str(error).capitalize()}.") from error
    except IdempotencyConflict as error:
        raise KeyReused(f"{str(error)[:1].upper()}{str(error)[1:]}.", param="idempotency-key") from error
    except TooManyBytes as error:
        raise QuotaExceeded(f"{error}.") from error
    except ObjectStorageFull as error:
        raise StorageFull("There is no room for this file now.") from error
    except ObjectMissing as error:
        raise RecordNotFound("The bytes of this file are gone.") from error


async def _create(files: FileService, exchange: HttpExchange, principal: Principal, _: str) -> None:
    key = idempotency_key_of(exchange.fields)
    limits = BodyLimits(files.bounds.file_bytes + FORM_BYTES, rate_bytes_per_s=16 * 1024)
    form = FormUpload(exchange.fields.get(b"content-type", b""), exchange.inbound.pieces(limits))
    now_s = files.wall()
    new = NewFile(
        f"file-{secrets.token_hex(12)}", principal.tenant, principal.key_id, "", FilePurpose.USER_DATA, now_s
    )
    declared = exchange.inbound.declared_bytes or 0
    if declared > limits.body_bytes:
        raise _too_large(files.bounds.file_bytes)
    try:
        made = await files.create(
            new, _early(form), max(0, declared - FORM_BYTES), lambda: _described(new, form), key
        )
    except ObjectTooLarge as error:
        raise _too_large(files.bounds.file_bytes) from error
    await _json(exchange, file_object(made))


async def _early(form: FormUpload) -> AsyncIterator[bytes]:
    """The file; a field that is wrong and stands before it ends the upload at once."""
    checked = False
    async for piece in form.file():
        if not checked:
            _purpose(form.fields, required=False)
            checked = True
        yield piece


def _described(new: NewFile, form: FormUpload) -> NewFile:
    """Raises BadRequest."""
    purpose = _purpose(form.fields, required=True)
    assert purpose is not None
    kept_s = _kept_s(form.fields)
    if kept_s is None and purpose is FilePurpose.BATCH:
        kept_s = BATCH_KEPT_S
    expires_s = None if kept_s is None else new.created_s + kept_s
    return replace(new, filename=file_name(form.filename or ""), purpose=purpose, expires_s=expires_s)


def file_name(given: str) -> str:
    """Without the directories and the control characters that a client may have written."""
    return _CONTROL.sub("", given).rsplit("/", 1)[-1].rsplit("\\", 1)[-1][-FILENAME_CHARS:] or "file"


def _purpose(fields: Mapping[str, str], *, required: bool) -> FilePurpose | None:
    given = fields.get("purpose")
    if given is None and not required:
        return None
    return file_purpose(given)


def file_purpose(given: str | None) -> FilePurpose:
    """What an upload says it is for. Raises BadRequest."""
    if given not in {purpose.value for purpose in UPLOADED}:
        known = ", ".join(sorted(purpose.value for purpose in UPLOADED))
        raise BadRequest(f"'purpose' must be one of {known}.", param="purpose")
    return FilePurpose(given)


def _kept_s(fields: Mapping[str, str]) -> float | None:
    """What ``expires_after`` says, which forms write as ``expires_after[seconds]``."""
    anchor, seconds = fields.get("expires_after[anchor]"), fields.get("expires_after[seconds]")
    if anchor is None and seconds is None:
        return None
    if anchor != "created_at":
        raise BadRequest("'expires_after[anchor]' must be created_at.", param="expires_after[anchor]")
    if seconds is None or not seconds.isdecimal() or not LEAST_KEPT_S <= int(seconds) <= MOST_KEPT_S:
        raise BadRequest(
            f"'expires_after[seconds]' must be an integer from {LEAST_KEPT_S} to {MOST_KEPT_S}.",
            param="expires_after[seconds]",
        )
    return float(seconds)


async def _list(files: FileService, exchange: HttpExchange, principal: Principal, _: str) -> None:
    query = {name: values[-1] for name, values in parse_qs(exchange.query.decode("latin-1")).items()}
    limit, order = read_limit(query, LIST_MOST, LIST_MOST), read_order(query)
    found = await files.list(
        principal.tenant,
        purpose=query.get("purpose"),
        after=query.get("after"),
        limit=limit + 1,
        newest_first=order == "desc",
    )
    shown = [file_object(file) for file in found[:limit]]
    first, last = (shown[0]["id"], shown[-1]["id"]) if shown else (None, None)
    page = {"object": "list", "data": shown, "first_id": first, "last_id": last}
    await _json(exchange, page | {"has_more": len(found) > limit})


async def _show(files: FileService, exchange: HttpExchange, principal: Principal, file_id: str) -> None:
    await _json(exchange, file_object(await files.get(file_id, principal.tenant)))


async def _delete(files: FileService, exchange: HttpExchange, principal: Principal, file_id: str) -> None:
    await files.delete(file_id, principal.tenant)
    await _json(exchange, {"id": file_id, "object": "file", "deleted": True})


async def _content(files: FileService, exchange: HttpExchange, principal: Principal, file_id: str) -> None:
    file = await files.get(file_id, principal.tenant)
    name = quote(file.new.filename)
    headers = [
        (b"content-type", b"application/octet-stream"),
        (b"content-length", b"%d" % file.size_bytes),
        (b"content-disposition", b"attachment; filename*=UTF-8''" + name.encode("ascii")),
        (b"x-content-type-options", b"nosniff"),
    ]
    async with exchange.while_here():
        if exchange.method == "HEAD":
            await exchange.reply.start(200, headers)
            await exchange.reply.end()
            return
        pieces = files.read(file)
        first = await anext(aiter(pieces), b"")  # what is gone is known before the head goes out
        await exchange.reply.start(200, headers, body_follows=True)
        await exchange.reply.write(first)
        async for piece in pieces:
            await exchange.reply.write(piece)
        await exchange.reply.end()


def file_object(file: FileRecord) -> dict[str, Any]:
    """A file as OpenAI's SDKs read it."""
    new = file.new
    found: dict[str, Any] = {
        "id": new.id,
        "object": "file",
        "bytes": file.size_bytes,
        "created_at": int(new.created_s),
        "filename": new.filename,
        "purpose": new.purpose.value,
        "status": "processed",
    }
    if new.expires_s is not None:
        found["expires_at"] = int(new.expires_s)
    return found


def _too_large(most: int) -> BodyTooLarge:
    return BodyTooLarge(f"A file may have {most} bytes at most.")


async def _json(exchange: HttpExchange, value: Mapping[str, Any]) -> None:
    await exchange.reply.whole(200, JSON, orjson.dumps(value))
