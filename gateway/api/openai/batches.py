"""OpenAI's Batch API: make, list, show and cancel batches of the key's tenant."""

import re
import secrets
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Annotated, Any
from urllib.parse import parse_qs

import orjson
from pydantic import BaseModel, ConfigDict, Field

from gateway.api.exchange.exchange import HttpExchange
from gateway.api.exchange.idempotency import once_key
from gateway.api.openai.handlers import JSON, KeyedHandler, KeyedPage
from gateway.api.openai.json_bodies import read_json
from gateway.api.openai.list_queries import read_limit
from gateway.api.openai.uploads import ExpiresAfter, sentence
from gateway.domain.batches import (
    ENDPOINTS,
    METADATA_ENTRIES,
    METADATA_NAME_CHARS,
    METADATA_VALUE_CHARS,
    TRY_ANYWAY,
    WINDOW_KEY,
    BatchRecord,
    BatchState,
    NewBatch,
)
from gateway.domain.errors import (
    BadRequest,
    BatchNotCancellable,
    Forbidden,
    KeyReused,
    RecordNotFound,
    StorageFull,
)
from gateway.domain.line_ranges import ALL_LINES, read_ranges
from gateway.domain.request import Principal, Tier
from gateway.jobs.batches.service import BatchService
from gateway.jobs.batches.submission import describe_principal
from gateway.jobs.service import check_lasting
from gateway.jobs.webhooks.service import AcceptWebhook
from gateway.pipeline.pipeline import KeyAuthenticator
from gateway.storage.batches import BatchEnded, UnfitFile
from gateway.storage.errors import UnknownRecord
from gateway.storage.jobs import IdempotencyConflict, ResultsFull
from shared.protocol.routes import PATHS

BATCHES = "/v1/batches"
ROUTE = "batches"
"""What logs and metrics call these paths."""

LISTED, LIST_MOST = 20, 100
WINDOW_HOURS = 7 * 24
"""Longest completion window."""

_WINDOW = re.compile(r"([1-9][0-9]{0,2})(h|d)\Z")
_Name = Annotated[str, Field(max_length=METADATA_NAME_CHARS)]
_Value = Annotated[str, Field(max_length=METADATA_VALUE_CHARS)]
_Handler = Callable[[HttpExchange, Principal, str], Awaitable[Mapping[str, Any]]]


class BatchBody(BaseModel):
    """Of ``POST /v1/batches``."""

    model_config = ConfigDict(strict=True)
    input_file_id: Annotated[str, Field(min_length=1)]
    endpoint: str
    completion_window: str
    metadata: Annotated[dict[_Name, _Value], Field(max_length=METADATA_ENTRIES)] | None = None
    output_expires_after: ExpiresAfter | None = None
    webhook: Any = None
    """A URL, or an object with its ``url``."""


def batches_pages(
    keys: KeyAuthenticator, batches: BatchService, accept_webhook: AcceptWebhook
) -> dict[str, KeyedPage]:
    """By path."""
    page = partial(KeyedPage, ROUTE, keys, _translated)
    create = _answering(partial(_create, batches, accept_webhook))
    listed, show = _answering(partial(_list, batches)), _answering(partial(_show, batches))
    return {
        BATCHES: page({"GET": listed, "POST": create}),
        BATCHES + "/{id}": page({"GET": show}),
        BATCHES + "/{id}/results": page({"GET": partial(_results, batches)}),
        BATCHES + "/{id}/cancel": page({"POST": _answering(partial(_cancel, batches))}),
    }


def _answering(handler: _Handler) -> KeyedHandler:
    async def answer(exchange: HttpExchange, principal: Principal, batch_id: str) -> None:
        found = await handler(exchange, principal, batch_id)
        await exchange.reply.whole(200, JSON, orjson.dumps(found))

    return answer


@contextmanager
def _translated() -> Iterator[None]:
    try:
        yield
    except UnknownRecord as error:
        raise RecordNotFound(f"{sentence(error)}.") from error
    except UnfitFile as error:
        raise BadRequest(f"{sentence(error)}.", param="input_file_id", code="invalid_value") from error
    except ResultsFull as error:
        raise StorageFull(f"{sentence(error)}.") from error
    except IdempotencyConflict as error:
        raise KeyReused(f"{sentence(error)}.", param="idempotency-key") from error
    except BatchEnded as error:
        raise BatchNotCancellable(f"{sentence(error)}.") from error


async def _create(
    batches: BatchService,
    accept_webhook: AcceptWebhook,
    exchange: HttpExchange,
    principal: Principal,
    _: str,
) -> dict[str, Any]:
    check_lasting(principal)
    body = await read_json(exchange, BatchBody)
    if body.endpoint not in ENDPOINTS:
        raise BadRequest(
            f"'endpoint' must be one of {', '.join(ENDPOINTS)}.", param="endpoint", code="invalid_value"
        )
    _check_scopes(principal, body.endpoint)
    window_s = _window_s(body.completion_window)
    if (body.metadata or {}).get(WINDOW_KEY, TRY_ANYWAY) != TRY_ANYWAY:
        raise BadRequest(
            f"'{WINDOW_KEY}' in 'metadata' can only be '{TRY_ANYWAY}'.",
            param="metadata",
            code="invalid_value",
        )
    webhook = await accept_webhook(body.webhook, principal.tenant)
    now_s, output = batches.wall(), body.output_expires_after
    batch = NewBatch(
        f"batch_{secrets.token_hex(16)}",
        principal.tenant,
        principal.key_id,
        describe_principal(principal),
        body.endpoint,
        body.input_file_id,
        body.completion_window,
        now_s,
        now_s + window_s,
        body.metadata,
        webhook,
        output_kept_s=None if output is None else float(output.seconds),
    )
    made = await batches.create(batch, once_key(exchange, principal, body.model_dump_json().encode()))
    return batch_object(made)


def _check_scopes(principal: Principal, endpoint: str) -> None:
    """Raises Forbidden for a key that may not ask for such at all."""
    scopes = principal.scopes
    if scopes is None:
        return
    route = PATHS[endpoint]
    if scopes.routes is not None and route not in scopes.routes:
        raise Forbidden(f"This key may not use {route}; it may use {', '.join(sorted(scopes.routes))}.")
    if scopes.tiers is not None and Tier.BATCH not in scopes.tiers:
        raise Forbidden("This key may not use the tier batch, which batches run in.")


def _window_s(window: str) -> float:
    found = _WINDOW.match(window)
    hours = 0 if found is None else int(found[1]) * (24 if found[2] == "d" else 1)
    if not 1 <= hours <= WINDOW_HOURS:
        raise BadRequest(
            f"'completion_window' must be 24h, or another number of hours up to {WINDOW_HOURS}h.",
            param="completion_window",
            code="invalid_value",
        )
    return hours * 3600.0


async def _list(
    batches: BatchService, exchange: HttpExchange, principal: Principal, _: str
) -> dict[str, Any]:
    query = {name: values[-1] for name, values in parse_qs(exchange.query.decode("latin-1")).items()}
    limit = read_limit(query, LISTED, LIST_MOST)
    found = await batches.list(principal.tenant, query.get("after"), limit + 1)
    shown = [batch_object(batch) for batch in found[:limit]]
    first, last = (shown[0]["id"], shown[-1]["id"]) if shown else (None, None)
    page = {"object": "list", "data": shown, "first_id": first, "last_id": last}
    return page | {"has_more": len(found) > limit}


async def _show(
    batches: BatchService, exchange: HttpExchange, principal: Principal, batch_id: str
) -> dict[str, Any]:
    return batch_object(await batches.get(batch_id, principal.tenant))


async def _results(
    batches: BatchService, exchange: HttpExchange, principal: Principal, batch_id: str
) -> None:
    """The lines that have ended by now, in the order of the input, as they come into the files at the end."""
    given = parse_qs(exchange.query.decode("latin-1"), keep_blank_values=True).get("lines")
    try:
        ranges = ALL_LINES if given is None else read_ranges(given[-1])
    except ValueError as error:
        raise BadRequest(f"'lines' {error}.", param="lines", code="invalid_value") from None
    batch = await batches.get(batch_id, principal.tenant)
    headers = [(b"content-type", b"application/jsonl"), (b"cache-control", b"no-store")]
    async with exchange.while_here():
        if exchange.method == "HEAD":
            await exchange.reply.start(200, headers)
            await exchange.reply.end()
            return
        lines = batches.results(batch, ranges)
        first = await anext(lines, b"")  # a store that fails is known before the head goes out
        await exchange.reply.start(200, headers, body_follows=True)
        if first:
            await exchange.reply.write(first)
        async for line in lines:
            await exchange.reply.write(line)
        await exchange.reply.end()


async def _cancel(
    batches: BatchService, exchange: HttpExchange, principal: Principal, batch_id: str
) -> dict[str, Any]:
    return batch_object(await batches.cancel(batch_id, principal.tenant))


def batch_object(batch: BatchRecord) -> dict[str, Any]:
    """A batch as OpenAI's SDKs read it."""
    new, counts = batch.new, batch.counts
    times = {f"{state.value}_at": _whole(batch.times.get(state)) for state in BatchState}
    del times["validating_at"]
    return {
        "id": new.id,
        "object": "batch",
        "endpoint": new.endpoint,
        "model": batch.model,
        "errors": {"object": "list", "data": list(batch.errors)} if batch.errors else None,
        "input_file_id": new.input_file_id,
        "completion_window": new.completion_window,
        "status": batch.state.value,
        "output_file_id": batch.output_file_id,
        "error_file_id": batch.error_file_id,
        "created_at": int(new.created_s),
        "expires_at": int(new.expires_s),
        **times,
        "request_counts": {"total": counts.total, "completed": counts.completed, "failed": counts.failed},
        "usage": batch.usage,
        "metadata": new.metadata,
        "webhook": new.webhook,
    }


def _whole(seconds: float | None) -> int | None:
    return None if seconds is None else int(seconds)
