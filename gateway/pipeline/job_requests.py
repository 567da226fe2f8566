"""Requests without a client attached: what is kept of them for their jobs, and how they are understood."""

import re
from collections.abc import Callable, Sequence
from urllib.parse import unquote

from msgspec.structs import replace

from gateway.domain.errors import BadRequest, PathTooLong, RouteNotFound
from gateway.domain.nearest_path import nearest
from gateway.domain.request import Principal, Request, RequestBody, Tier
from gateway.domain.surface import ENDPOINTS, PATH_BYTES, EngineTarget, SurfaceEndpoint, target
from gateway.jobs.service import JobRequest
from gateway.pipeline.aliases.routing import FALLBACK, VERSION
from gateway.pipeline.bodies.facts import JsonFacts, is_short, read_facts
from gateway.pipeline.bodies.reader import BodyReader
from gateway.pipeline.classify import TIER, classify, tier_asked
from gateway.pipeline.client_body import BodyKind, ClientBody
from gateway.pipeline.client_head import READ_TIMEOUT, SESSION, WHERE, ClientHead, forwarded_headers

_KEPT = frozenset((WHERE, SESSION, VERSION, FALLBACK, b"x-model"))
"""Fields for the gateway itself that count when the job runs; its tier is the job's own."""
_DROPPED = frozenset(("prefer", "idempotency-key", "content-length"))
"""They are about how the job was submitted."""
_PRINTABLE = re.compile(r"[\x21-\x7e]+\Z")


class JobRequestReader:
    """Understands requests of jobs whose bodies are JSON (:class:`gateway.jobs.service.RequestReader`)."""

    def __init__(
        self,
        clock: Callable[[], float],
        knows: Callable[[str], bool] = lambda name: False,
        reader: BodyReader | None = None,
    ) -> None:
        """``reader`` reads long bodies; without one they are read here. ``knows`` is as in
        :func:`gateway.pipeline.classify.classify`."""
        self._clock = clock
        self._knows = knows
        self._reader = reader

    async def __call__(
        self,
        job_id: str,
        principal: Principal,
        path: str,
        headers: Sequence[tuple[str, str]],
        body: bytes,
        tier: Tier | None,
    ) -> JobRequest:
        """Raises RequestError."""
        endpoint, aimed_at = endpoint_of(path)
        fields = [(name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in headers]
        head = ClientHead(job_id, "POST", endpoint, aimed_at, fields, dict(reversed(fields)), self._clock())
        content = RequestBody([body], None, len(body))
        read = ClientBody(BodyKind.OPAQUE, content)
        if not endpoint.names_model:
            read = ClientBody(BodyKind.JSON, content, facts=await self._facts(principal, body))
        request = classify_job(head, read, principal, self._knows, tier)
        return JobRequest(request, path, kept_headers(head))

    async def _facts(self, principal: Principal, body: bytes) -> JsonFacts:
        if self._reader is None or is_short((body,)):
            return read_facts(body)
        return await self._reader.read((body,), (principal.tenant, principal.key_id))


def endpoint_of(path: str) -> tuple[SurfaceEndpoint, EngineTarget]:
    """What a path with its query asks for. Raises BadRequest, PathTooLong, RouteNotFound."""
    raw_path, _, query = path.partition("?")
    if not _PRINTABLE.match(path) or not path.startswith("/") or "#" in path:
        raise BadRequest("'path' must be a path such as /v1/chat/completions.", param="path")
    if len(path) > PATH_BYTES:
        raise PathTooLong(f"The path and its query may be {PATH_BYTES} bytes long at most.", param="path")
    decoded = unquote(raw_path)
    for endpoint in ENDPOINTS:
        family = endpoint.fixed is None and decoded.startswith(endpoint.path)
        if family or decoded == endpoint.path:
            aimed_at = target(endpoint, decoded, raw_path, query.encode("ascii"))
            if aimed_at is not None:
                return endpoint, aimed_at
    near = nearest(decoded)
    hint = f"Did you mean {near}?" if near else "GET /docs lists the paths there are."
    raise RouteNotFound(f"No job can ask for {raw_path[:200]}. {hint}", param="path")


def classify_job(
    head: ClientHead,
    body: ClientBody,
    principal: Principal,
    knows: Callable[[str], bool] = lambda name: False,
    tier: Tier | None = None,
) -> Request:
    """As :func:`gateway.pipeline.classify.classify`, but of the tier ``tier``, else of that which the request
    asks for, else of the lowest that its key may use. Raises RequestError."""
    if tier is None:
        if body.facts is None and body.kind is BodyKind.JSON:
            body.facts = read_facts(body.content.prefix)
        members = body.form if body.facts is None else body.facts.members
        tier = tier_asked(head.fields, members) or lowest_tier(principal)
    fields = {**head.fields, TIER: tier.value.encode("ascii")}
    return classify_unhurried(replace(head, fields=fields), body, principal, knows)


def classify_unhurried(
    head: ClientHead,
    body: ClientBody,
    principal: Principal,
    knows: Callable[[str], bool] = lambda name: False,
) -> Request:
    """As :func:`gateway.pipeline.classify.classify`, but without the deadline of a client that waits. Raises
    RequestError."""
    fields = {name: value for name, value in head.fields.items() if name != READ_TIMEOUT}
    return classify(replace(head, fields=fields), body, principal, knows)


def lowest_tier(principal: Principal) -> Tier:
    """Batch, unless the key may not use it."""
    allowed = None if principal.scopes is None else principal.scopes.tiers
    if allowed is None:
        return Tier.BATCH
    return next((tier for tier in (Tier.BATCH, Tier.STANDARD, Tier.REALTIME) if tier in allowed), Tier.BATCH)


def kept_headers(head: ClientHead) -> tuple[tuple[str, str], ...]:
    """Those that engines get and those that say how the gateway is to treat the request. Raises BadRequest,
    HeadersTooLarge."""
    forwarded = tuple(field for field in forwarded_headers(head, None) if field[0] not in _DROPPED)
    ours = tuple(
        (name.decode("latin-1").lower(), value.decode("latin-1"))
        for name, value in head.headers
        if name.lower() in _KEPT
    )
    return forwarded + ours
