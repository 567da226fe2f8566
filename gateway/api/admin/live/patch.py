"""JSON merge patches (RFC 7396) between two states, and the changes of state in them. Pure."""

from collections.abc import Iterator, Mapping
from typing import Any

Json = dict[str, Any]


def merge_patch(before: Mapping[str, Any], after: Mapping[str, Any]) -> Json:
    """What makes ``after`` of ``before``; empty where they are equal. Neither holds None: RFC 7396 cannot
    say it. What is the same object on both sides is not looked into."""
    if before is after:
        return {}
    patch: Json = {}
    for name, value in after.items():
        old = before.get(name)
        if old is value:
            continue
        if isinstance(value, dict) and isinstance(old, dict):
            if inner := merge_patch(old, value):
                patch[name] = inner
        elif old != value:
            patch[name] = value
    if len(before) + len(patch) > len(after):
        patch.update(dict.fromkeys(name for name in before if name not in after))
    return patch


def apply_patch(state: Mapping[str, Any], patch: Mapping[str, Any]) -> Json:
    """``state`` as ``patch`` makes it (RFC 7396, 2)."""
    found = dict(state)
    for name, value in patch.items():
        if value is None:
            found.pop(name, None)
        elif isinstance(value, Mapping):
            old = found.get(name)
            found[name] = apply_patch(old if isinstance(old, Mapping) else {}, value)
        else:
            found[name] = value
    return found


def without_none(facts: Mapping[str, Any]) -> Json:
    """``facts`` without members that are not known."""
    return {name: value for name, value in facts.items() if value is not None}


def changes_between(before: Mapping[str, Any], after: Mapping[str, Any], at_s: float) -> Iterator[Json]:
    """Agents and deployments whose status is another."""
    for of, section in (("agent", "agents"), ("deployment", "deployments")):
        old, new = before.get(section, {}), after.get(section, {})
        if old is new:
            continue
        for name, facts in new.items():
            known = old.get(name)
            if known is facts:
                continue
            was, status = None if known is None else known.get("status"), facts.get("status")
            if was != status:
                why = facts.get("reason")
                change = {"at": at_s, "of": of, "name": name, "from": was, "to": status}
                yield change | {"why": why} if why else change
        for name, facts in old.items():
            if name not in new:
                yield {"at": at_s, "of": of, "name": name, "from": facts.get("status"), "to": None}
