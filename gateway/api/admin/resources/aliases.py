"""Operations on aliases."""

from collections.abc import Sequence
from typing import Any

from gateway.api.admin.resources.request import AdminRequest, Json
from gateway.domain.aliases import Alias, AliasMirror, AliasTarget, BadAlias, read_target, read_targets
from gateway.storage import Store
from gateway.storage.errors import BadValue


def list_aliases(store: Store, asked: AdminRequest) -> Json:
    """Every alias and what it stands for."""
    records = store.aliases.list()
    times = ({"created_s": each.created_s, "changed_s": each.changed_s} for each in records)
    return {"aliases": [_facts(each.alias) | at for each, at in zip(records, times, strict=True)]}


def show_alias(store: Store, asked: AdminRequest) -> Json:
    """Its latest changes, the newest last, with what it was after each."""
    changes = [
        {
            "change": each.id,
            "at_s": each.at_s,
            "what": each.what,
            "alias": None if each.alias is None else _facts(each.alias),
        }
        for each in store.aliases.history(asked.name)
    ]
    return {"alias": asked.name, "changes": changes}


def set_alias(store: Store, asked: AdminRequest) -> Json:
    """Have a name stand for these, from the next request on. ``unserved`` names those nobody serves."""
    body = asked.body
    targets = _read(body["targets"])
    what = "switch" if body.get("switch") else "set"
    alias = store.aliases.set_targets(asked.name, targets, asked.wall_s, sticky=body.get("sticky"), what=what)
    return _facts(alias) | {"unserved": _unserved(alias.targets, asked)}


def change_alias(store: Store, asked: AdminRequest) -> Json:
    """Set its mirror or its fallback, or with null take it off. What is not named stays."""
    body = asked.body
    if ("mirror" in body) == ("fallback" in body):
        raise BadValue("give either a mirror or a fallback")
    if "mirror" in body:
        mirror, wanted = None, body["mirror"]
        if wanted is not None:
            mirror = AliasMirror(_one(wanted["target"]), wanted["share"])
        return _facts(store.aliases.set_mirror(asked.name, mirror, asked.wall_s))
    chain = tuple(map(_one, body["fallback"] or ()))
    return _facts(store.aliases.set_fallback(asked.name, chain, asked.wall_s))


def rollback_alias(store: Store, asked: AdminRequest) -> Json:
    """Have it stand for what it stood for before, or after one of its changes."""
    alias = store.aliases.rollback(asked.name, asked.wall_s, asked.body.get("to"))
    return _facts(alias) | {"unserved": _unserved(alias.targets, asked)}


def remove_alias(store: Store, asked: AdminRequest) -> Json:
    """Forget it; the name is a model's again, or nobody's."""
    return {"alias": store.aliases.remove(asked.name, asked.wall_s).name, "removed": True}


def _facts(alias: Alias) -> dict[str, Any]:
    whole = sum(target.weight for target in alias.stands_for)
    shares = [each.to_dict() | {"share": each.weight / whole} for each in alias.stands_for]
    return {"alias": alias.name, "name": alias.name, **alias.to_dict(), "targets": shares}


def _unserved(targets: Sequence[AliasTarget], asked: AdminRequest) -> list[str]:
    return [str(each) for each in targets if each.weight and not asked.serves(each.model, each.version)]


def _read(texts: Sequence[str]) -> tuple[AliasTarget, ...]:
    try:
        return read_targets(texts)
    except BadAlias as error:
        raise BadValue(str(error)) from error


def _one(text: str) -> AliasTarget:
    try:
        return read_target(text)
    except BadAlias as error:
        raise BadValue(str(error)) from error
