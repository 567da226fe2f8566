"""Which requests are identical. Pure.

Two requests are when one tenant sends them, they may be answered by the same model and version in the same
places, and the engine would get the same of both, but for what surely changes no answer.
"""

import hashlib
from collections.abc import Mapping
from typing import Any, NamedTuple

import orjson

from gateway.domain.request import Request

_UNREAD = frozenset(
    {
        *("content-length", "user-agent", "accept-language", "idempotency-key", "origin", "referer"),
        *("traceparent", "tracestate", "baggage", "b3", "dnt", "priority", "date", "pragma", "cache-control"),
    }
)
"""Header fields that engines get and that change no answer."""

_UNREAD_PREFIXES = ("sec-", "x-b3-", "x-datadog-", "x-request-", "x-amzn-", "cf-")

_WHO = ("user", "prompt_cache_key", "safety_identifier")
"""Members that say on whose behalf it is asked. In answers of the route ``responses`` they are repeated."""

_AS_ZERO = bytes.maketrans(b"123456789", b"000000000")
_LONG_NUMBER = b"0" * 16
"""May lose digits when it is read; then the body counts as it is written."""


class CacheKey(NamedTuple):
    """Of identical requests. Tenants share nothing, whatever the digests."""

    tenant: str
    digest: bytes
    """SHA-256."""


def key_of(request: Request, members: Mapping[str, Any]) -> CacheKey:
    """``members`` is what the request's body, which was read whole, says."""
    headers = sorted(field for field in request.headers if not _unread(field[0]))
    about = (
        request.model,
        request.version,
        None if request.where is None else str(request.where),
        request.method,
        request.path,
        request.route,
        request.streaming,
        request.usage.value,
        headers,
    )
    tenant = request.principal.tenant
    digest = hashlib.sha256(orjson.dumps((tenant, *about)))
    digest.update(b"\n")  # which JSON has nowhere: what comes before cannot run on into the body
    digest.update(_canonical(request, members))
    return CacheKey(tenant, digest.digest())


def _canonical(request: Request, members: Mapping[str, Any]) -> bytes:
    """The body with its members in order and without those that change nothing."""
    if _LONG_NUMBER in request.body.prefix.translate(_AS_ZERO):
        return b"\n" + request.body.prefix
    left_out = () if request.route == "responses" else _WHO
    kept = {name: value for name, value in members.items() if name not in left_out}
    try:
        return orjson.dumps(kept, option=orjson.OPT_SORT_KEYS)
    except orjson.JSONEncodeError:  # nested deeper than it can be written
        return b"\n" + request.body.prefix


def _unread(name: str) -> bool:
    return name in _UNREAD or name.startswith(_UNREAD_PREFIXES)
