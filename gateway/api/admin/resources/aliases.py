"""Aliases: what the names stand for that clients ask for.

A running gateway goes by a change from the next request on.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

from annotated_types import MaxLen, MinLen

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
from gateway.domain.aliases import (
    FALLBACKS,
    TARGETS,
    Alias,
    AliasMirror,
    AliasTarget,
    alias_of,
    read_target,
    read_targets,
)
from gateway.domain.scopes import AdminRole

if TYPE_CHECKING:
    from gateway.storage import Store

ALIASES = Resource(
    "alias",
    "/admin/aliases",
    "Names that stand for models and versions: canaries, shadows, fallbacks.",
    example="trunkline alias set llama llama@v1=95 llama@v2=5",
    argument=("name", "What clients ask for as the model."),
    role=AdminRole.OPERATOR,
)

_TARGET_HELP = "MODEL, MODEL@VERSION, or MODEL@ for agents that say no version."


def _shares_text(alias: Alias) -> str:
    whole = sum(target.weight for target in alias.stands_for)
    if len(alias.stands_for) == 1:
        return str(alias.stands_for[0])
    return ", ".join(f"{each} {100 * each.weight / whole:.3g} %" for each in alias.stands_for)


def _names_text(targets: tuple[AliasTarget, ...]) -> str:
    return ", ".join(map(str, targets))


def _alias_cell(show: Callable[[Alias], str], when_none: str = "") -> Callable[[Json], str]:
    """A column for an alias, or for what one was after a change, which may be none."""

    def cell(facts: Json) -> str:
        found = facts if "what" not in facts else facts["alias"]
        return when_none if found is None else show(alias_of(found["name"], found))

    return cell


def _mirror_text(alias: Alias) -> str:
    return "" if alias.mirror is None else f"{alias.mirror.target} {alias.mirror.share:.3g}"


_COLUMNS = {
    "STANDS FOR": _alias_cell(_shares_text, "no alias"),
    "STICKY": _alias_cell(lambda alias: "yes" if alias.sticky else "no"),
    "MIRROR": _alias_cell(_mirror_text),
    "FALLBACK": _alias_cell(lambda alias: _names_text(alias.fallback)),
}


def _alias_text(facts: Json) -> str:
    alias = alias_of(facts["name"], facts)
    lines = [f"{alias.name!r} stands for {_shares_text(alias)}."]
    if alias.mirror is not None:
        lines.append(f"{alias.mirror.share:.3g} of its requests are also sent to {alias.mirror.target}.")
    if alias.fallback:
        lines.append(f"For clients that allow it: {_names_text(alias.fallback)}.")
    return "\n".join(lines)


def _warn(facts: Json, running: bool) -> Iterator[str]:
    known = "serves" if running else "has lately served"
    for each in facts.get("unserved", ()):
        yield f"Warning: nobody {known} {each}; requests that go there are refused until somebody does."


def _checked_target(text: str) -> str:
    """Raises BadAlias."""
    read_target(text)
    return text


def _checked_targets(texts: list[str]) -> list[str]:
    """Raises BadAlias."""
    read_targets(texts)
    return texts


def _read_chain(text: str) -> list[str]:
    """Raises BadAlias."""
    return [_checked_target(each.strip()) for each in text.split(",")]


_TARGETS = (
    Field(
        "targets",
        Annotated[list[str], MinLen(1), MaxLen(TARGETS)],
        f"{_TARGET_HELP} With several, each may have a weight: llama@v1=95.",
        default=REQUIRED,
        option="",
        read=_checked_targets,
        metavar="TARGET",
    ),
    Field(
        "sticky",
        bool,
        "Whether requests of one session go to one target (as before; at first they do).",
        option="--sticky/--no-sticky",
    ),
    Field("switch", bool, default=False),  # whether the history is to call it a switch
)
_SET = ResourceCommand(
    "set",
    _alias_text,
    help="""Have NAME stand for one or several targets, from the next request on.

    A weight of 0 gives a target no requests but those that ask for its version with x-trunkline-version.

    Example: trunkline alias set llama llama@v1=95 llama@v2=5
    """,
    warn=_warn,
)
_SWITCH = ResourceCommand(
    "switch",
    _alias_text,
    help="""Have NAME stand for this target alone: blue to green in one step.

    Example: trunkline alias switch llama llama@v2
    """,
    fields=(Field("target", str, _TARGET_HELP, default=REQUIRED, option="", read=_checked_target),),
    body=lambda given: {"targets": [given["target"]], "switch": True},
    warn=_warn,
)


@ALIASES.operation("PUT", "/{alias:path}", _SET, _SWITCH, fields=_TARGETS)
def set_alias(store: "Store", request: AdminRequest) -> Json:
    """Have a name stand for these, from the next request on. ``unserved`` names those nobody serves."""
    targets = read_targets(request.body["targets"])
    what = "switch" if request.body["switch"] else "set"
    sticky = request.body.get("sticky")
    alias = store.aliases.set_targets(request.name, targets, request.wall_s, sticky=sticky, what=what)
    return alias_facts(alias) | {"unserved": _unserved(alias.targets, request)}


_TO = Field("to", int, "What it was after this change of its history. [default: what it was before]")
_ROLLBACK = ResourceCommand("rollback", _alias_text, warn=_warn)


@ALIASES.operation("POST", "/{alias:path}/rollback", _ROLLBACK, fields=(_TO,))
def rollback_alias(store: "Store", request: AdminRequest) -> Json:
    """Have NAME stand for what it stood for before, also when it was removed. Done twice it changes nothing.

    Example: trunkline alias rollback llama
    """
    alias = store.aliases.rollback(request.name, request.wall_s, request.body.get("to"))
    return alias_facts(alias) | {"unserved": _unserved(alias.targets, request)}


def _mirror_body(given: Json) -> Json:
    off = given.pop("off")
    if off == ("target" in given) or off == ("share" in given):
        raise BadInput("give a target and its --share, or --off", "TARGET")
    return {"mirror": given or None}


_MIRROR = ResourceCommand(
    "mirror",
    _alias_text,
    help="""Send copies of a share of the requests for NAME to a shadow, whose answers nobody gets.

    Example: trunkline alias mirror llama llama@v2 --share 0.1
    """,
    fields=(
        Field("target", str, _TARGET_HELP, option="", read=_checked_target),
        Field("share", float, "Of the requests for NAME: over 0, at most 1."),
        Field("off", bool, "Send copies no more.", default=False),
    ),
    body=_mirror_body,
)


def _fallback_body(given: Json) -> Json:
    if given["off"] == ("models" in given):
        raise BadInput("give at least one model, or --off", "MODELS")
    return {"fallback": given.get("models", [])}


_CHAIN_HELP = "A,B,…: models, MODEL@VERSIONs or aliases, the first choice first."
_FALLBACK = ResourceCommand(
    "fallback",
    _alias_text,
    help="""Say who may answer instead of NAME, an alias or a model, when it is full or nobody serves it.

    Only clients that send x-trunkline-fallback: allow (or some of the names) get such answers.

    Example: trunkline alias fallback llama-70b llama-8b,llama-1b
    """,
    fields=(
        Field("models", str, _CHAIN_HELP, option="", read=_read_chain),
        Field("off", bool, "Nobody else answers any more.", default=False),
    ),
    body=_fallback_body,
)
_CHANGES = (
    Field("mirror", (Field("target", str, default=REQUIRED), Field("share", float, default=REQUIRED))),
    Field("fallback", Annotated[list[str], MaxLen(FALLBACKS)]),
)


@ALIASES.operation("PATCH", "/{alias:path}", _MIRROR, _FALLBACK, fields=_CHANGES)
def change_alias(store: "Store", request: AdminRequest) -> Json:
    """Set its mirror or its fallback, or with null take it off. What is not named stays."""
    body = request.body
    if ("mirror" in body) == ("fallback" in body):
        raise BadInput("give either a mirror or a fallback")
    if "mirror" in body:
        wanted = body["mirror"]
        mirror = None if wanted is None else AliasMirror(read_target(wanted["target"]), wanted["share"])
        return alias_facts(store.aliases.set_mirror(request.name, mirror, request.wall_s))
    chain = tuple(map(read_target, body["fallback"] or ()))
    return alias_facts(store.aliases.set_fallback(request.name, chain, request.wall_s))


_TABLE = Table("aliases", {"NAME": "name", **_COLUMNS, "CHANGED": "changed_s"}, "no aliases")


@ALIASES.operation("GET", "", ResourceCommand("list", table=_TABLE), role=AdminRole.VIEWER)
def list_aliases(store: "Store", request: AdminRequest) -> Json:
    """List aliases: what they stand for, their shadows and fallbacks.

    Example: trunkline alias list --json
    """
    records = store.aliases.list()
    return {
        "aliases": [
            alias_facts(each.alias) | {"created_s": each.created_s, "changed_s": each.changed_s}
            for each in records
        ]
    }


_HISTORY = Table(
    "changes",
    {"CHANGE": "change", "AT": "at_s", "WHAT": "what", **_COLUMNS},
    "nothing is known of {named!r}",
)


@ALIASES.operation("GET", "/{alias:path}", ResourceCommand("history", table=_HISTORY), role=AdminRole.VIEWER)
def show_alias(store: "Store", request: AdminRequest) -> Json:
    """List the latest changes of NAME, the newest last, with what it was after each.

    Example: trunkline alias history llama
    """
    changes = [
        {
            "change": each.id,
            "at_s": each.at_s,
            "what": each.what,
            "alias": None if each.alias is None else alias_facts(each.alias),
        }
        for each in store.aliases.history(request.name)
    ]
    return {"alias": request.name, "changes": changes}


_REMOVED = "{named!r} is no alias any more. To have it back: trunkline alias rollback {named}"


@ALIASES.operation("DELETE", "/{alias:path}", ResourceCommand("remove", _REMOVED))
def remove_alias(store: "Store", request: AdminRequest) -> Json:
    """Forget NAME as an alias. If it is a model's too, requests go to whatever serves that, in any version.

    Example: trunkline alias remove llama-test
    """
    return {"alias": store.aliases.remove(request.name, request.wall_s).name, "removed": True}


def alias_facts(alias: Alias) -> Json:
    """What an alias stands for, with each target's share of the requests."""
    whole = sum(target.weight for target in alias.stands_for)
    shares = [asdict(each) | {"share": each.weight / whole} for each in alias.stands_for]
    return {"alias": alias.name, "name": alias.name, **alias.to_dict(), "targets": shares}


def _unserved(targets: Sequence[AliasTarget], request: AdminRequest) -> list[str]:
    return [str(each) for each in targets if each.weight and not request.serves(each.model, each.version)]
