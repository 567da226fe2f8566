"""Whether a client may ask for what it asks for: its scopes are compared with one request. Pure."""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any
from urllib.parse import unquote_plus

from gateway.domain.errors import Forbidden
from gateway.domain.request import Tier
from gateway.domain.scopes import Scopes, listed
from gateway.domain.surface import ENGINE

_INSTEAD = (Tier.STANDARD, Tier.REALTIME, Tier.BATCH)
"""A request that names no tier gets the first of these that is allowed."""

_JSON = re.compile(
    rb"(?:\xef\xbb\xbf|\xff\xfe(?:\x00\x00)?|(?:\x00\x00)?\xfe\xff)?"
    rb"(?:\x00{0,3}[ \t\r\n\v\f])*+\x00{0,3}(?:[{\[]|\Z)"
)
"""JSON as far as it can be told, in whatever Unicode, with a mark of byte order or none; or only blanks."""

BEGINNING_BYTES = 64 * 1024
"""Of a body are looked at. What follows so many blanks nobody knows, and it is taken for JSON."""


def permitted_tier(scopes: Scopes, model: str, route: str, tier: Tier | None) -> Tier:
    """The tier of a request for ``model`` and ``route`` that asks for ``tier``, or for none.

    Raises Forbidden: ``model_not_allowed``, ``route_not_allowed``, ``tier_not_allowed``.
    """
    if scopes.routes is not None and route not in scopes.routes:
        raise _refused("route", f"requests of the kind {route!r}", listed(scopes.routes), param=None)
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
        raise _refused("tier", f"the tier {tier.value!r}", listed(scopes.tiers), param="x-trunkline-tier")
    return tier


def check_one_model(scopes: Scopes, *, named: int, members: Iterable[str]) -> None:
    """Refuse a JSON body in which an engine could find another model than the gateway did.

    The body names ``model`` so often, and has these ``members``. Some engines read the names of members
    whatever their case (Go's encoding/json), or the first of two members of one name. Raises Forbidden.
    """
    if scopes.models is None:
        return
    alike = next((name for name in members if name != "model" and name.lower() == "model"), None)
    if named > 1 or alike is not None:
        other = "a second member 'model'" if alike is None else f"the member {alike[:64]!r}"
        raise _unsure(f"a request names its model once: {other} is not allowed beside 'model'")


def check_no_json(scopes: Scopes, pieces: Sequence[bytes]) -> None:
    """Refuse a body that was not sent as JSON and begins like some: there are engines that read JSON whatever
    its content type. Raises Forbidden."""
    if scopes.models is None:
        return
    begins = b"".join(pieces[:2])[:BEGINNING_BYTES]
    if begins and _JSON.match(begins) is not None:
        raise _unsure(
            "JSON must be sent as such, with its model: set content-type to application/json", "content-type"
        )


def check_named(scopes: Scopes, members: Mapping[str, Any]) -> None:
    """Refuse JSON and forms whose model is only in ``x-model``: engines find one further behind, or choose
    one themselves. Raises Forbidden."""
    if scopes.models is not None and members.get("model") is None:
        raise _unsure("the body names the request's model: set 'model' in it, in a form before the file")


def check_query(scopes: Scopes, path: str) -> None:
    """Refuse a query that names a model: some engines read it before the body (Go's FormValue). ``path`` is
    the request's, with its query. Raises Forbidden."""
    _, _, query = path.partition("?")
    if scopes.models is None or not query:
        return
    names = (pair.partition("=")[0] for pair in query.replace(";", "&").split("&"))
    if any(unquote_plus(name).strip().lower() == "model" for name in names):
        raise _unsure("a request names its model in its body: leave 'model' out of the query")


def _unsure(why: str, param: str = "model") -> Forbidden:
    message = f"This key is limited to some models, so {why}."
    return Forbidden(message, param=param, code="model_not_allowed")


def _refused(kind: str, asked: str, allowed: str, param: str | None) -> Forbidden:
    only = f"only these {kind}s: {allowed}" if allowed else f"no {kind} at all"
    return Forbidden(
        f"This key may not be used for {asked}; it allows {only}.", param=param, code=f"{kind}_not_allowed"
    )
