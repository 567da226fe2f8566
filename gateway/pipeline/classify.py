"""What a request is and how dear it will be, from its head and body. Pure."""

from collections.abc import Callable, Mapping
from typing import Any

from gateway.auth.scope_checks import check_named, check_no_json, check_one_model, check_query, permitted_tier
from gateway.domain.errors import BadRequest
from gateway.domain.remembered import Remembered
from gateway.domain.request import Principal, Request, Tier
from gateway.domain.scopes import Scopes
from gateway.domain.surface import AddressedPath, EngineTarget, check_model, model_in_query, read_model
from gateway.pipeline.bodies.facts import JsonFacts, read_facts
from gateway.pipeline.client_body import (
    SESSION_MEMBERS,
    BodyKind,
    ClientBody,
    ask_usage,
    session_key,
    token_demand,
    wants_stream,
    wrong_type,
)
from gateway.pipeline.client_head import (
    DEADLINE_MAX_S,
    READ_TIMEOUT,
    SESSION,
    TRACE,
    TTFT,
    WHERE,
    ClientHead,
    deadline_s_of,
    forwarded_headers,
    residency_of,
    session_of,
    trace_of,
    ttft_s_of,
)
from gateway.pipeline.tensors import TIMEOUT, read_parameters
from gateway.quota.tokens import tokens_unread
from shared.protocol.messages import UsageMode
from shared.protocol.routes import UPGRADE_NEED, Dialect, need_of

_JSON, _KSERVE, _TGI, _OPAQUE, _NONE, _STANDARD = (
    BodyKind.JSON,
    Dialect.KSERVE,
    Dialect.TGI,
    BodyKind.OPAQUE,
    UsageMode.NONE,
    Tier.STANDARD,
)
"""Members of enumerations for the path of every request: a global is found faster."""

_TIERS = {"priority": Tier.REALTIME, "flex": Tier.BATCH, "batch": Tier.BATCH}
"""OpenAI's ``service_tier``; every other value names none."""

TIER = b"x-trunkline-tier"

OnlyModel = Callable[[str, Callable[[str], bool] | None], str | None]
"""Given a route, and which models may be shown (None: all), the one model that is meant where none is named;
None: there is none, or there are several."""

_NOTHING_READ = JsonFacts({})


def classify(
    head: ClientHead,
    body: ClientBody,
    principal: Principal,
    knows: Callable[[str], bool] = lambda name: False,
    only: OnlyModel = lambda route, shows: None,
) -> Request:
    """The request for queue, scheduler and dispatch. ``knows`` says whether there is a model or an alias of a
    name, and ``only`` gives the model of a request that names none. Raises :class:`RequestError`."""
    fields, endpoint, target = head.fields, head.endpoint, head.target
    kind, content, facts = body.kind, body.content, body.facts
    dialect, route, upgrade = endpoint.dialect, endpoint.route, head.upgrade is not None
    if facts is None and kind is _JSON:
        facts = read_facts(content.pieces[0] if len(content.pieces) == 1 else content.prefix)
    members = body.form if facts is None else facts.members
    addressed = target.addressed and _addressed(target, knows)
    if dialect is _KSERVE and content.held_bytes:
        members = read_parameters(fields, content)
    implied = _implied(head, members, principal, only) if dialect is _TGI else None
    model = implied or (_model(head, members) if addressed is None else addressed.model)
    tier = tier_asked(fields, members) if TIER in fields or "service_tier" in members else None
    if principal.scopes is not None:
        tier = _permitted_tier(principal.scopes, head, body, facts, members, model, tier, implied is None)
    streaming = upgrade or wants_stream(head, kind, members)
    read, usage = facts or _NOTHING_READ, _NONE
    demand, prompt_bytes = token_demand(head, kind, content, members, read.prompts), read.prompt_bytes
    if facts is not None:
        if model == members.get("model"):
            content.names_model(facts.models)
        if streaming and endpoint.asks_usage:
            usage = ask_usage(content, facts)
    request = Request(  # by position: to find so many by their names takes a microsecond more
        head.id,
        principal,
        head.method,
        target.path,
        forwarded_headers(head, content.size_bytes),
        model,
        route,
        streaming,
        content,
        head.arrived_s,
        _need(head) if endpoint.need is None or upgrade else endpoint.need,
        usage,
        tier or _STANDARD,
        principal.where,
        prompt_bytes // 4,
        endpoint.output_tokens if demand.most_tokens is None else demand.most_tokens,
        prompt_bytes,
        demand.most_tokens,
        demand.choices,
        demand.endless,
        tuple(read.prefix),
    )
    if addressed is not None or kind is _OPAQUE:
        _note_passed_on(request, kind, addressed)
    plain = _WISHES.isdisjoint(fields) and SESSION_MEMBERS.isdisjoint(members)
    if not plain or upgrade or dialect is _KSERVE:
        _heed_wishes(request, head, members)
    return request


def _note_passed_on(request: Request, kind: BodyKind, addressed: AddressedPath | None) -> None:
    """What is known of a request that is for one agent, or of one whose body nobody reads."""
    if addressed is not None:
        request.agent = addressed.agent
    if kind is _OPAQUE:
        request.input_tokens = tokens_unread(request.body.prefix, request.body.size_bytes)


_WISHES = frozenset((READ_TIMEOUT, WHERE, SESSION, TTFT, TRACE))
"""Header fields that say how the request is to be treated, or what it belongs to."""


def _heed_wishes(request: Request, head: ClientHead, members: Mapping[str, Any]) -> None:
    """What head and body say besides, of which most say nothing. Raises BadRequest, Forbidden."""
    fields = head.fields
    request.upgrade = head.upgrade is not None
    if not request.streaming and (READ_TIMEOUT in fields or TIMEOUT in members):
        request.deadline_s = _deadline_s(head, members)
    if WHERE in fields:
        request.where = residency_of(head, request.principal)
    request.session_key = session_of(fields) if SESSION in fields else session_key(members)
    if TTFT in fields:
        request.ttft_s = ttft_s_of(fields)
    if TRACE in fields:
        request.trace = trace_of(fields)


def _need(head: ClientHead) -> str:
    """What a deployment must have for a request where its endpoint alone does not say."""
    if head.upgrade is not None:
        return UPGRADE_NEED
    return need_of(head.endpoint.route, head.target.path)


def _permitted_tier(
    scopes: Scopes,
    head: ClientHead,
    body: ClientBody,
    facts: JsonFacts | None,
    members: Mapping[str, Any],
    model: str,
    tier: Tier | None,
    names_model: bool,
) -> Tier | None:
    """The tier, if ``scopes`` allow it and the model, and query and body name what they allow, and nothing
    twice. Not ``names_model``: these need name nothing. Raises Forbidden."""
    tier = permitted_tier(scopes, model, head.endpoint.route, tier)
    if head.endpoint.names_model:
        return tier
    check_query(scopes, head.target.path)
    if facts is None:
        check_no_json(scopes, body.content.pieces)
    else:
        check_one_model(scopes, named=facts.named, members=facts.members)
    if names_model and body.kind is not BodyKind.OPAQUE:
        check_named(scopes, members)
    return tier


def _addressed(target: EngineTarget, knows: Callable[[str], bool]) -> AddressedPath | None:
    """The model at an agent that ``/engines/a@b/…`` means, unless there is a model ``a@b``."""
    return None if target.model is None or knows(target.model) else target.addressed


def _deadline_s(head: ClientHead, members: Mapping[str, Any]) -> float | None:
    """When the client stops waiting: by its SDK's read timeout, or as its request says in KServe's protocol,
    whichever comes first."""
    read_s = deadline_s_of(head)
    if head.endpoint.dialect is not Dialect.KSERVE or TIMEOUT not in members:
        return read_s
    asked_s: float = head.arrived_s + min(members[TIMEOUT], DEADLINE_MAX_S)
    return asked_s if read_s is None else min(read_s, asked_s)


def _implied(
    head: ClientHead, members: Mapping[str, Any], principal: Principal, only: OnlyModel
) -> str | None:
    """The model of a request that names none; None where it names one, or that is not enough."""
    if "model" in members or b"x-model" in head.fields:
        return None
    return only(head.endpoint.route, None if principal.scopes is None else principal.scopes.shows)


def _model(head: ClientHead, members: Mapping[str, Any]) -> str:
    """From the path, the body or ``x-model``, in this order."""
    if head.target.model is not None:
        return head.target.model
    if head.endpoint.only_upgrades and (named := model_in_query(head.target.path)) is not None:
        return named
    model = members.get("model")
    if isinstance(model, str):
        return _MODEL_NAMES[model]
    if model is None and head.endpoint.dialect is Dialect.OLLAMA:
        model = members.get("name")  # as its first clients called it
    if model is None and b"x-model" in head.fields:
        return read_model(head.fields[b"x-model"])
    if model is None:
        message = "Say which model to use: set 'model' in the body, or the header x-model."
        raise BadRequest(f"{message} GET /v1/models lists them.", param="model", code="missing_model")
    if not isinstance(model, str):
        raise wrong_type("model", "a string", model)
    return _MODEL_NAMES[model]


_MODEL_NAMES = Remembered(check_model, 256)
"""Names of models that were checked: those of every request are few."""


def tier_asked(fields: Mapping[bytes, bytes], members: Mapping[str, Any]) -> Tier | None:
    """The tier asked for; None: none is. Raises BadRequest."""
    named = fields.get(TIER)
    if named is not None:
        try:
            return Tier(named.decode("latin-1").strip().lower())
        except ValueError:
            message = f"The header x-trunkline-tier must be one of {', '.join(Tier)}."
            raise BadRequest(message, param="x-trunkline-tier", code="invalid_tier") from None
    service_tier = members.get("service_tier")
    return _TIERS.get(service_tier) if isinstance(service_tier, str) else None
