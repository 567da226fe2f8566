"""The gateway's own key, which agents trust. No answer holds a key, only facts that are public."""

from typing import TYPE_CHECKING

from gateway.api.admin.resources.resource import AdminRequest, Json, Resource, ResourceCommand, Table
from gateway.api.admin.resources.text import duration_field, format_time
from gateway.domain.scopes import AdminRole

if TYPE_CHECKING:
    from gateway.storage import Store
    from shared.identity import GatewayIdentity, GatewayKeys

IDENTITY = Resource(
    "identity",
    "/admin/identity",
    "The gateway's own key, which agents trust.",
    example="trunkline identity show",
    role=AdminRole.VIEWER,
)


def _until_text(facts: Json) -> str:
    return "" if facts["until_s"] is None else format_time(facts["until_s"])


_TABLE = Table("keys", {"ID": "id", "STATE": "state", "UNTIL": _until_text, "SHA-256": "sha256"}, "no key")


@IDENTITY.operation("GET", "", ResourceCommand("show", table=_TABLE))
def show_identity(store: "Store", request: AdminRequest) -> Json:
    """Show the id and the fingerprint of the gateway's key, and of the one before while it counts.

    The key itself is shown to nobody. Over HTTP it takes the role viewer.

    Example: trunkline identity show
    """
    return {"keys": _facts(store.identity.keys, request.wall_s)}


def _rotated_text(facts: Json) -> str:
    current, *previous = facts["keys"]
    rest = "Every agent must join again."
    if previous:
        rest = f"The one before counts until {format_time(previous[0]['until_s'])}."
    return f"The gateway's key is {current['id']} from now on. {rest}"


_OVERLAP = (
    "How long the key there is counts beside the new one: agents hear of the new key while they "
    "are connected in that time. 0s after a theft: every agent must join again."
)


@IDENTITY.operation(
    "POST",
    "/rotate",
    ResourceCommand("rotate", _rotated_text),
    role=AdminRole.ADMIN,
    fields=(duration_field("overlap_s", "--overlap", _OVERLAP, "30d"),),
    only_here="the gateway's own key is what every agent trusts, so it is changed on the gateway's host, "
    "on its state directory, and not by whoever has a key",
)
def rotate_identity(store: "Store", request: AdminRequest) -> Json:
    """Give the gateway a new key. A running gateway uses it at once and tells its agents.

    Join tokens and certificates made before are good until the overlap ends. An agent that is away for all of
    it must join again.

    This is done on the gateway's host only, on its state directory: the key never leaves it, and whoever has
    stolen an admin's key shall not be able to change what every agent trusts. With --url it is refused.

    Example: trunkline identity rotate --overlap 30d
    """
    return {"keys": _facts(store.identity.rotate(request.body["overlap_s"], request.wall_s), request.wall_s)}


def _facts(keys: "GatewayKeys", wall_s: float) -> list[Json]:
    facts = [_key_facts(keys.current, "current", None)]
    if (previous := keys.previous_at(wall_s)) is not None:
        facts.append(_key_facts(previous, "previous", keys.until_s))
    return facts


def _key_facts(key: "GatewayIdentity", state: str, until_s: float | None) -> Json:
    return {"id": key.id, "state": state, "until_s": until_s, "sha256": key.fingerprint.hex()}
