"""Operations on the gateway's own key. No answer holds a key: what is told of one is public."""

from typing import Any

from gateway.api.admin.resources.request import AdminRequest, Json
from gateway.storage import Store
from shared.identity import GatewayIdentity, GatewayKeys


def show_identity(store: Store, asked: AdminRequest) -> Json:
    """Ids and fingerprints of the key that agents trust, and of the one before while it counts."""
    return {"keys": _facts(store.identity.keys, asked.wall_s)}


def rotate_identity(store: Store, asked: AdminRequest) -> Json:
    """Make a new key; the one there was counts for a while more."""
    return {"keys": _facts(store.identity.rotate(asked.body["overlap_s"], asked.wall_s), asked.wall_s)}


def _facts(keys: GatewayKeys, wall_s: float) -> list[dict[str, Any]]:
    facts = [_key_facts(keys.current, "current", None)]
    if (previous := keys.previous_at(wall_s)) is not None:
        facts.append(_key_facts(previous, "previous", keys.until_s))
    return facts


def _key_facts(key: GatewayIdentity, state: str, until_s: float | None) -> dict[str, Any]:
    return {"id": key.id, "state": state, "until_s": until_s, "sha256": key.fingerprint.hex()}
