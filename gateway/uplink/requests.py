"""A request of the parent, made what queue, scheduler and dispatch know as one (PROTOCOL §7.6). Pure."""

from msgspec.structs import replace

from gateway.domain.errors import RequestDeclined
from gateway.domain.request import Principal, Request, RequestBody, Tier
from gateway.domain.residency import BadResidency, Residency, where_of
from gateway.domain.surface import ENDPOINTS, ENGINE, EngineTarget, SurfaceEndpoint
from gateway.pipeline.bodies.facts import is_short
from gateway.pipeline.classify import classify
from gateway.pipeline.client_body import BodyKind, ClientBody, body_kind
from gateway.pipeline.client_head import ClientHead
from gateway.pipeline.websocket_head import Subprotocols, read_subprotocols
from shared.protocol import limits
from shared.protocol.messages import RequestHead, UsageMode

ACCOUNT = "(uplink)"
"""The key and the tenant under which the parent's requests are booked. No key and no tenant can be called
so."""

PRINCIPAL = Principal(ACCOUNT, ACCOUNT, ACCOUNT)

_FIXED = {endpoint.path: endpoint for endpoint in ENDPOINTS if endpoint.fixed is not None}
_FAMILIES = tuple(each for each in ENDPOINTS if each.fixed is None and each is not ENGINE)


def endpoint_of(path: str) -> SurfaceEndpoint:
    """What an engine's path, with or without a query, is for; those that are not built in are its own."""
    bare = path.partition("?")[0]
    if (fixed := _FIXED.get(bare)) is not None:
        return fixed
    return next((each for each in _FAMILIES if bare.startswith(each.path)), ENGINE)


def check_path(head: RequestHead, own_ids: frozenset[str]) -> None:
    """Raises RequestDeclined for a request that goes in a circle, or through too many gateways."""
    if not own_ids.isdisjoint(head.via):
        raise RequestDeclined("The request has come through this gateway before: gateways form a loop.")
    if len(head.via) > limits.HOPS:
        raise RequestDeclined(f"The request has come through more than {limits.HOPS} gateways.")


def place_of(head: RequestHead) -> Residency | None:
    """Where it may run. Raises RequestDeclined for what is no constraint."""
    if not head.where:
        return None
    try:
        return where_of(head.where)
    except BadResidency as error:
        raise RequestDeclined(f"Where the request may run cannot be read: {error}.") from None


def request_of(
    head: RequestHead, body: RequestBody, where: Residency | None, version: str, now: float
) -> Request:
    """The request that OPEN and its body are. ``version`` is that of the deployment it is for.

    Raises RequestError for a body that no engine can take.
    """
    endpoint = endpoint_of(head.path)
    headers = [(_encoded(name), _encoded(text)) for name, text in head.headers]
    client = ClientHead(
        head.request_id,
        head.method,
        endpoint,
        EngineTarget(head.path, head.model),
        headers,
        dict(reversed(headers)),
        now,
        _subprotocols(headers) if head.upgrade else None,
    )
    kind = body_kind(endpoint, head.method, client.fields)
    if kind is not BodyKind.JSON or body.rest is not None or not is_short(body.pieces):
        kind = BodyKind.OPAQUE  # the parent has read it, and nothing of it is needed but estimates
    request = classify(client, ClientBody(kind, body), PRINCIPAL)
    usage = request.usage if head.usage is UsageMode.NONE else head.usage
    return replace(
        request,
        headers=_with_length(head, body),
        streaming=head.streaming,
        usage=usage,
        tier=_tier(head.tier),
        deadline_s=None if head.deadline_s is None else now + head.deadline_s,
        where=where,
        version=version,
        via=head.via,
        trace=head.trace,
        session_key=request.session_key,
        at_once=True,
    )


def _subprotocols(headers: list[tuple[bytes, bytes]]) -> Subprotocols:
    """What the client's WebSocket offers the engine; a parent passes on no credentials (PROTOCOL §5.5)."""
    return Subprotocols(read_subprotocols(headers).offered)


def _encoded(text: str) -> bytes:
    return text.encode("latin-1", "replace")


def _with_length(head: RequestHead, body: RequestBody) -> tuple[tuple[str, str], ...]:
    """The header fields as they came; classifying may have changed the body's length."""
    if body.size_bytes is None:
        return head.headers
    length = "content-length", str(body.size_bytes)
    return tuple(length if field[0] == length[0] else field for field in head.headers)


def _tier(name: str) -> Tier:
    try:
        return Tier(name)
    except ValueError:
        return Tier.STANDARD
