"""API keys, which let clients in."""

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

from annotated_types import MaxLen

from gateway.api.admin.resources.resource import (
    REQUIRED,
    AdminRequest,
    BadInput,
    Field,
    Json,
    Resource,
    ResourceCommand,
    Table,
)
from gateway.api.admin.resources.text import (
    RATE_FIELDS,
    Names,
    duration_field,
    format_limits,
    format_time,
    names_field,
    split_commas,
)
from gateway.domain.quotas import Rates
from gateway.domain.residency import read_where, where_of
from gateway.domain.scopes import AdminRole, limited
from shared.protocol.routes import ANY_ROUTE, ROUTES

if TYPE_CHECKING:
    from gateway.storage import KeyRecord, Store

KEYS = Resource(
    "key",
    "/admin/keys",
    "API keys for clients.",
    example="trunkline key create --name laptop --models 'llama-*' --expires 30d",
)

_RATES = tuple(each.name for each in RATE_FIELDS)
_SCOPES = ("models", "routes", "tiers")


def _read_where(texts: list[str]) -> dict[str, list[str]]:
    """Raises BadResidency."""
    return read_where(",".join(texts)).to_dict()


def _read_routes(texts: list[str]) -> list[str] | None:
    return None if texts == ["all"] else split_commas(texts)


def _read_role(text: str) -> str | None:
    if text != "none" and text not in tuple(AdminRole):
        raise BadInput(f"{text!r} is none of {', '.join(AdminRole)}, none")
    return None if text == "none" else text


_NEW_KEY = (
    Field("name", str, "What to call it: shown in lists and used to revoke it.", default=REQUIRED),
    Field("tenant", str, "Whom it belongs to.", default="default"),
    names_field(
        "models",
        "Models it may ask for, shell patterns; an alias counts by its own name. Repeatable. "
        "[default: every model]",
        "--models --model",
    ),
    names_field(
        "routes",
        f"Kinds of requests: {', '.join(route for route in ROUTES if route != ANY_ROUTE)}; {ANY_ROUTE} for "
        "/engines/…. Repeatable. [default: every route; any not with --models or limits in tokens]",
    ),
    names_field("tiers", "realtime, standard, batch. Repeatable. [default: every tier]"),
    Field(
        "where",
        Annotated[dict[str, Names], MaxLen(64)],
        "Its requests run only on agents with this label. Of values of one label any will do; all labels "
        "must be right. Repeatable. [default: anywhere]",
        option_type=list[str],
        read=_read_where,
        metavar="K=V[,K=V]",
    ),
    duration_field("life_s", "--expires", "How long it works: 24h, 30d … [default: for ever]"),
    Field(
        "role",
        AdminRole,
        "What it may do on the admin API; an operator may also manage engines by their own paths. "
        "[default: nothing]",
    ),
    *RATE_FIELDS,
)
_CHANGES = (
    *RATE_FIELDS,
    Field(
        "routes",
        Names,
        "Kinds of requests, as for create; all: every kind. Repeatable.",
        read=_read_routes,
        metavar="A,B",
    ),
    Field(
        "role",
        AdminRole,
        "viewer, operator or admin; none: no role.",
        option_type=str,
        read=_read_role,
        metavar="ROLE",
    ),
)


def _scopes_text(facts: Json) -> str:
    return " ".join(f"{name}={','.join(facts[name])}" for name in _SCOPES if facts[name] is not None)


def _limits_text(facts: Json) -> str:
    return " ".join(filter(None, (_scopes_text(facts), format_limits(facts, _RATES))))


def _where_text(facts: Json) -> str:
    found = facts["where"] or {}
    return ",".join(f"{name}={value}" for name, values in found.items() for value in values)


def _created_text(facts: Json) -> str:
    scopes, rates, where = _scopes_text(facts), format_limits(facts, _RATES), _where_text(facts)
    parts = (
        f"API key {facts['name']!r} of tenant {facts['tenant']!r}",
        f", for {scopes}" if scopes else "",
        f", at {rates} at most" if rates else "",
        f", for agents with {where} only" if where else "",
        "" if facts["role"] is None else f", {facts['role']} on the admin API",
        "" if facts["expires_s"] is None else f", until {format_time(facts['expires_s'])}",
        ".\nOnly its hash is kept: store it now, it is not shown again.",
    )
    return "".join(parts)


@KEYS.operation(
    "POST", "", ResourceCommand("create", _created_text, last_line="key"), fields=_NEW_KEY, makes_state=True
)
def create_key(store: "Store", request: AdminRequest) -> Json:
    """Make an API key and print it as the last line. It is shown this once.

    Example: trunkline key create --name laptop --models 'llama-*' --expires 30d
    """
    body, role = request.body, request.body.get("role")
    text = store.keys.create(
        body["name"],
        body["tenant"],
        request.wall_s,
        None if body.get("where") is None else where_of(body["where"]),
        scopes=limited(*(body.get(name) for name in _SCOPES)),
        role=None if role is None else AdminRole(role),
        life_s=body.get("life_s"),
        rates=Rates(*(body.get(name) for name in _RATES)),
    )
    return {"key": text, **key_facts(store.keys.get(body["name"]), request.wall_s)}


def _check_change(body: Json) -> Json:
    if not body:
        raise BadInput("say what: --rpm, --tpm, --concurrency, --routes or --role")
    return body


def _changed_text(facts: Json) -> str:
    limits, role = _limits_text(facts) or "no limits", facts["role"] or "none"
    return f"API key {facts['name']!r}: {limits}, role {role}."


@KEYS.operation("PATCH", "/{key}", ResourceCommand("set", _changed_text, body=_check_change), fields=_CHANGES)
def set_key(store: "Store", request: AdminRequest) -> Json:
    """Give an API key other limits, routes or a role, from the next request on. What is not named stays.

    Example: trunkline key set laptop --rpm 60 --tpm 100000 --concurrency 4 --routes any,chat
    """
    if not request.body:
        raise BadInput(f"say at least one of {', '.join(each.name for each in _CHANGES)}")
    return key_facts(store.keys.change(request.name, request.body), request.wall_s)


_TABLE = Table(
    "keys",
    {
        "NAME": "name",
        "TENANT": "tenant",
        "STATE": "state",
        "KEY": lambda facts: f"sk-tl-…{facts['hint']}",
        "CREATED": "created_s",
        "EXPIRES": "expires_s",
        "LAST USED": "last_used_s",
        "ROLE": "role",
        "LIMITS": _limits_text,
        "WHERE": _where_text,
    },
    "no API keys",
)


@KEYS.operation("GET", "", ResourceCommand("list", table=_TABLE))
def list_keys(store: "Store", request: AdminRequest) -> Json:
    """List API keys: names, states, limits and last use, never the keys.

    Example: trunkline key list --json
    """
    return {"keys": [key_facts(record, request.wall_s) for record in store.keys.list()]}


def _rotated_text(facts: Json) -> str:
    until_s = facts["old_secret_until_s"]
    old = "no longer works" if until_s is None else f"works until {format_time(until_s)}"
    return (
        f"API key {facts['name']!r} has a new secret; the old one {old}. Store it now, it is not shown again."
    )


_OVERLAP = duration_field(
    "overlap_s", "--overlap", "How long the old secret works beside the new one.", "24h"
)


@KEYS.operation(
    "POST", "/{key}/rotate", ResourceCommand("rotate", _rotated_text, last_line="key"), fields=(_OVERLAP,)
)
def rotate_key(store: "Store", request: AdminRequest) -> Json:
    """Give an API key another secret and print it as the last line. It is shown this once.

    The old one works until the overlap ends (0s: no longer); one from a rotation before that ends now.

    Example: trunkline key rotate laptop --overlap 24h
    """
    record, text = store.keys.rotate(request.name, request.body["overlap_s"], request.wall_s)
    return {"key": text, **key_facts(record, request.wall_s)}


@KEYS.operation("DELETE", "/{key}", ResourceCommand("revoke", "API key {name!r} is revoked."))
def revoke_key(store: "Store", request: AdminRequest) -> Json:
    """Revoke an API key. A running gateway refuses it from the next request on.

    Example: trunkline key revoke laptop
    """
    record = store.keys.revoke(request.name, request.wall_s)
    return {"name": record.name, "id": record.id, "revoked": True}


def key_facts(record: "KeyRecord", wall_s: float) -> Json:
    """The facts of a key that may be shown: neither it nor its hash."""
    scopes = {} if record.scopes is None else record.scopes.to_dict()
    return {
        "id": record.id,
        "name": record.name,
        "tenant": record.tenant,
        "state": record.state(wall_s).value,
        "hint": record.hint,
        "created_s": record.created_s,
        "expires_s": record.expires_s,
        "revoked_s": record.revoked_s,
        "last_used_s": record.last_used_s,
        "old_secret_until_s": record.previous_until_s,
        "role": record.role,
        **{name: scopes.get(name) for name in _SCOPES},
        "where": record.where and record.where.to_dict(),
        **asdict(record.rates or Rates()),
    }
