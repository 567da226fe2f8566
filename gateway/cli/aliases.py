"""``trunkline alias``: what the names stand for that clients ask for (SCHEDULING §5, Versions).

A running gateway goes by a change from the next request on.
"""

from collections.abc import Callable
from typing import Annotated, Any

import typer

from gateway.cli.access import GatewayAccess, on_a_gateway
from gateway.cli.options import JsonOption
from gateway.domain.aliases import Alias, AliasTarget, BadAlias, alias_of, read_target, read_targets
from gateway.tools.console import moment, note, print_json, print_table
from shared.process.command_line import command_group

NameArgument = Annotated[str, typer.Argument(help="What clients ask for as the model.")]
_TARGET_HELP = "MODEL, MODEL@VERSION, or MODEL@ for agents that say no version."

aliases = command_group(
    "Names that stand for models and versions: canaries, shadows, fallbacks.",
    example="trunkline alias set llama llama@v1=95 llama@v2=5",
)


def register(app: typer.Typer) -> None:
    """Add ``alias`` to a command line."""
    app.add_typer(aliases, name="alias")


@aliases.command("set")
@on_a_gateway
def set_targets(
    gateway: GatewayAccess,
    name: NameArgument,
    target: Annotated[
        list[str],
        typer.Argument(help=f"{_TARGET_HELP} With several, each may have a weight: llama@v1=95."),
    ],
    sticky: Annotated[
        bool | None,
        typer.Option(
            "--sticky/--no-sticky",
            help="Whether requests of one session go to one target (as before; at first they do).",
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Have NAME stand for one or several targets, from the next request on.

    A weight of 0 gives a target no requests but those that ask for its version with x-trunkline-version.

    Example: trunkline alias set llama llama@v1=95 llama@v2=5
    """
    _check(lambda: read_targets(target), "TARGET")
    _tell(gateway, gateway.do("set_alias", name, targets=target, sticky=sticky), as_json)


@aliases.command("switch")
@on_a_gateway
def switch(
    gateway: GatewayAccess,
    name: NameArgument,
    target: Annotated[str, typer.Argument(help=_TARGET_HELP)],
    as_json: JsonOption = False,
) -> None:
    """Have NAME stand for this target alone: blue to green in one step.

    Example: trunkline alias switch llama llama@v2
    """
    _check(lambda: read_target(target), "TARGET")
    _tell(gateway, gateway.do("set_alias", name, targets=[target], switch=True), as_json)


@aliases.command("rollback")
@on_a_gateway
def rollback(
    gateway: GatewayAccess,
    name: NameArgument,
    to: Annotated[
        int | None,
        typer.Option(help="What it was after this change of its history. [default: what it was before]"),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Have NAME stand for what it stood for before, also when it was removed. Done twice it changes nothing.

    Example: trunkline alias rollback llama
    """
    _tell(gateway, gateway.do("rollback_alias", name, to=to), as_json)


@aliases.command("mirror")
@on_a_gateway
def mirror(
    gateway: GatewayAccess,
    name: NameArgument,
    target: Annotated[str | None, typer.Argument(help=_TARGET_HELP)] = None,
    share: Annotated[float | None, typer.Option(help="Of the requests for NAME: over 0, at most 1.")] = None,
    off: Annotated[bool, typer.Option("--off", help="Send copies no more.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Send copies of a share of the requests for NAME to a shadow, whose answers nobody gets.

    Example: trunkline alias mirror llama llama@v2 --share 0.1
    """
    if off == (target is not None) or off == (share is not None):
        raise typer.BadParameter("give a target and its --share, or --off", param_hint="TARGET")
    shadow = None
    if target is not None:
        _check(lambda: read_target(target), "TARGET")
        shadow = {"target": target, "share": share}
    _tell(gateway, gateway.do("change_alias", name, mirror=shadow), as_json)


@aliases.command("fallback")
@on_a_gateway
def fallback(
    gateway: GatewayAccess,
    name: NameArgument,
    models: Annotated[
        str | None,
        typer.Argument(help="A,B,…: models, MODEL@VERSIONs or aliases, the first choice first."),
    ] = None,
    off: Annotated[bool, typer.Option("--off", help="Nobody else answers any more.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Say who may answer instead of NAME, an alias or a model, when it is full or nobody serves it.

    Only clients that send x-trunkline-fallback: allow (or some of the names) get such answers.

    Example: trunkline alias fallback llama-70b llama-8b,llama-1b
    """
    if off == (models is not None):
        raise typer.BadParameter("give at least one model, or --off", param_hint="MODELS")
    chain = [] if models is None else [each.strip() for each in models.split(",")]
    _check(lambda: [read_target(each) for each in chain], "MODELS")
    _tell(gateway, gateway.do("change_alias", name, fallback=chain), as_json)


@aliases.command("list")
@on_a_gateway
def list_aliases(gateway: GatewayAccess, as_json: JsonOption = False) -> None:
    """List aliases: what they stand for, their shadows and fallbacks.

    Example: trunkline alias list --json
    """
    found = gateway.do("list_aliases")["aliases"]
    if as_json:
        print_json(list(map(_facts, found)))
        return
    rows = [[each["name"], *_cells(_alias(each)), moment(each["changed_s"])] for each in found]
    print_table(["NAME", "STANDS FOR", "STICKY", "MIRROR", "FALLBACK", "CHANGED"], rows, "no aliases")


@aliases.command("history")
@on_a_gateway
def history(gateway: GatewayAccess, name: NameArgument, as_json: JsonOption = False) -> None:
    """List the latest changes of NAME, the newest last, with what it was after each.

    Example: trunkline alias history llama
    """
    changes = gateway.do("show_alias", name)["changes"]
    if as_json:
        known = ({"alias": None if each["alias"] is None else _facts(each["alias"])} for each in changes)
        print_json([each | alias for each, alias in zip(changes, known, strict=True)])
        return
    rows = [
        [
            str(each["change"]),
            moment(each["at_s"]),
            each["what"],
            *(["no alias", "", "", ""] if each["alias"] is None else _cells(_alias(each["alias"]))),
        ]
        for each in changes
    ]
    columns = ["CHANGE", "AT", "WHAT", "STANDS FOR", "STICKY", "MIRROR", "FALLBACK"]
    print_table(columns, rows, f"nothing is known of {name!r}")


@aliases.command("remove")
@on_a_gateway
def remove(gateway: GatewayAccess, name: NameArgument) -> None:
    """Forget NAME as an alias. If it is a model's too, requests go to whatever serves that, in any version.

    Example: trunkline alias remove llama-test
    """
    gateway.do("remove_alias", name)
    note(f"{name!r} is no alias any more. To have it back: trunkline alias rollback {name}")


def _tell(gateway: GatewayAccess, found: dict[str, Any], as_json: bool) -> None:
    """Say what the name is now, and who of its targets nobody serves."""
    alias = _alias(found)
    if as_json:
        print_json(_facts(found))
    else:
        note(f"{alias.name!r} stands for {_shares(alias)}.")
        if alias.mirror is not None:
            note(f"{alias.mirror.share:.3g} of its requests are also sent to {alias.mirror.target}.")
        if alias.fallback:
            note(f"For clients that allow it: {_names(alias.fallback)}.")
    known = "serves" if gateway.running else "has lately served"
    for each in found.get("unserved", ()):
        note(f"Warning: nobody {known} {each}; requests that go there are refused until somebody does.")


def _check(read: Callable[[], object], hint: str) -> None:
    """Raises typer.BadParameter when it cannot be read."""
    try:
        read()
    except BadAlias as error:
        raise typer.BadParameter(str(error), param_hint=hint) from None


def _alias(facts: dict[str, Any]) -> Alias:
    return alias_of(facts["name"], facts)


def _facts(found: dict[str, Any]) -> dict[str, Any]:
    """What ``--json`` shows of what the gateway says."""
    return {name: value for name, value in found.items() if name not in ("alias", "unserved")}


def _cells(alias: Alias) -> list[str]:
    mirror = "" if alias.mirror is None else f"{alias.mirror.target} {alias.mirror.share:.3g}"
    return [_shares(alias), "yes" if alias.sticky else "no", mirror, _names(alias.fallback)]


def _shares(alias: Alias) -> str:
    whole = sum(target.weight for target in alias.stands_for)
    if len(alias.stands_for) == 1:
        return str(alias.stands_for[0])
    return ", ".join(f"{each} {100 * each.weight / whole:.3g} %" for each in alias.stands_for)


def _names(targets: tuple[AliasTarget, ...]) -> str:
    return ", ".join(map(str, targets))
