"""Operations on API keys."""

from dataclasses import asdict
from typing import Any

from gateway.api.admin.resources.request import AdminRequest, Json
from gateway.domain.quotas import BadQuota, Rates
from gateway.domain.residency import BadResidency, where_of
from gateway.domain.scopes import AdminRole, limited
from gateway.storage import DEFAULT_TENANT, KeyRecord, Store
from gateway.storage.errors import BadValue

OVERLAP_S = 86_400.0
"""How long the secret before works beside a new one, unless something else is said."""

_RATES = ("rpm", "tpm", "concurrency")
_CHANGEABLE = (*_RATES, "routes", "role")


def list_keys(store: Store, asked: AdminRequest) -> Json:
    """Every key, revoked ones too; no secret and no hash."""
    return {"keys": [key_facts(record, asked.wall_s) for record in store.keys.list()]}


def create_key(store: Store, asked: AdminRequest) -> Json:
    """Make a key. Its text is in the answer, this once."""
    body, role = asked.body, asked.body.get("role")
    try:
        where = None if body.get("where") is None else where_of(body["where"])
        rates = Rates(*(body.get(name) for name in _RATES))
    except (BadResidency, BadQuota) as error:
        raise BadValue(str(error)) from error
    text = store.keys.create(
        body["name"],
        body.get("tenant", DEFAULT_TENANT),
        asked.wall_s,
        where,
        scopes=limited(*(body.get(name) for name in ("models", "routes", "tiers"))),
        role=None if role is None else AdminRole(role),
        life_s=body.get("life_s"),
        rates=rates,
    )
    return {"key": text, **key_facts(store.keys.get(body["name"]), asked.wall_s)}


def set_key(store: Store, asked: AdminRequest) -> Json:
    """Give it other limits, routes or another role; null: none. What is not named stays."""
    changes = {name: asked.body[name] for name in _CHANGEABLE if name in asked.body}
    if not changes:
        raise BadValue(f"say at least one of {', '.join(_CHANGEABLE)}")
    return key_facts(store.keys.change(asked.name, changes), asked.wall_s)


def revoke_key(store: Store, asked: AdminRequest) -> Json:
    """It lets nobody in from the next request on."""
    record = store.keys.revoke(asked.name, asked.wall_s)
    return {"name": record.name, "id": record.id, "revoked": True}


def rotate_key(store: Store, asked: AdminRequest) -> Json:
    """Give it another secret, which is in the answer, this once."""
    record, text = store.keys.rotate(asked.name, asked.body.get("overlap_s", OVERLAP_S), asked.wall_s)
    return {"key": text, **key_facts(record, asked.wall_s)}


def key_facts(record: KeyRecord, wall_s: float) -> dict[str, Any]:
    """What may be told of a key: neither it nor its hash."""
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
        "models": scopes.get("models"),
        "routes": scopes.get("routes"),
        "tiers": scopes.get("tiers"),
        "where": record.where and record.where.to_dict(),
        **asdict(record.rates or Rates()),
    }
