"""What may be told of keys."""

from dataclasses import asdict
from typing import Any

from gateway.quotas import Rates
from gateway.store import KeyRecord


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
