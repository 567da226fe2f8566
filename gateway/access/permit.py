"""Whether a client may ask for what it asks for: its scopes held against one request. Pure."""

from collections.abc import Iterable

from gateway.domain import Tier
from gateway.errors import Forbidden
from gateway.scopes import Scopes, told
from gateway.surface import ENGINE

_INSTEAD = (Tier.STANDARD, Tier.REALTIME, Tier.BATCH)
"""Of the tiers allowed, the first of these is that of a request which names none."""


def permitted_tier(scopes: Scopes, model: str, route: str, tier: Tier | None) -> Tier:
    """The tier of a request for ``model`` and ``route`` that asks for ``tier``, or for none.

    Raises Forbidden: ``model_not_allowed``, ``route_not_allowed``, ``tier_not_allowed``.
    """
    if scopes.routes is not None and route not in scopes.routes:
        raise _refused("route", f"requests of the kind {route!r}", told(scopes.routes), param=None)
    if scopes.models is not None:
        if route == ENGINE.route and scopes.routes is None:
            raise Forbidden(
                "This key is limited to some models, so it may use /engines/… only when its routes name "
                f"{ENGINE.route!r}: which model an engine runs there is not for the gateway to see.",
                code="route_not_allowed",
            )
        if model not in scopes.models:
            raise _refused("model", f"the model {model!r}", str(scopes.models), param="model")
    if scopes.tiers is None:
        return tier or Tier.STANDARD
    if tier is None:
        tier = next((each for each in _INSTEAD if each in scopes.tiers), Tier.STANDARD)
    if tier not in scopes.tiers:
        raise _refused("tier", f"the tier {tier.value!r}", told(scopes.tiers), param="x-trunkline-tier")
    return tier


def check_one_model(scopes: Scopes, members: Iterable[str], *, opaque: bool, begins: bytes) -> None:
    """Refuse a body in which an engine could find another model than the gateway did.

    ``members`` are the names at the top of a body that was parsed, ``begins`` is the beginning of one that
    was not (``opaque``). Some engines read the names of members whatever their case (Go's encoding/json), and
    JSON whatever its content type. Raises Forbidden.
    """
    if scopes.models is None:
        return
    if opaque and begins.lstrip()[:1] in (b"{", b"["):
        raise Forbidden(
            "This key is limited to some models, so JSON must be sent as such, with its model: set "
            "content-type to application/json.",
            param="content-type",
            code="model_not_allowed",
        )
    others = [name for name in members if name != "model" and name.lower() == "model"]
    if others:
        raise Forbidden(
            "This key is limited to some models, so a request names its model once: "
            f"the member {others[0]!r} is not allowed beside 'model'.",
            param="model",
            code="model_not_allowed",
        )


def _refused(kind: str, asked: str, allowed: str, param: str | None) -> Forbidden:
    only = f"only these {kind}s: {allowed}" if allowed else f"no {kind} at all"
    return Forbidden(
        f"This key may not be used for {asked}; it allows {only}.", param=param, code=f"{kind}_not_allowed"
    )
