"""``trunkline alias``: what the names stand for that clients ask for (SCHEDULING §5, Versions).

Works on the state directory, whether or not a gateway runs on it; a running one goes by it from the next
request on. Explanations go to stderr, data to stdout; exit 0 done, 1 failed, 2 wrong usage (SURFACE).
"""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer

from gateway.aliases import Alias, BadAlias, Mirror, Target, read_target, read_targets
from gateway.cli_output import moment, note, print_json, print_table
from gateway.cli_state import JsonOption, StateOption, opened
from gateway.store import AliasStore

_T = TypeVar("_T")

NameArgument = Annotated[str, typer.Argument(help="What clients ask for as the model.")]
_TARGET_HELP = "MODEL, MODEL@VERSION, or MODEL@ for agents that say no version."

aliases = typer.Typer(
    no_args_is_help=True, help="Names that stand for models and versions: canaries, shadows, fallbacks."
)


def register(app: typer.Typer) -> None:
    """Add ``alias`` to a command line."""
    app.add_typer(aliases, name="alias")


@aliases.command("set")
def set_targets(
    state: StateOption,
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
    wanted = _read(lambda: read_targets(target), "TARGET")
    _change(
        state,
        name,
        as_json,
        lambda store, wall_s: store.set_targets(name, wanted, wall_s, sticky=sticky),
    )


@aliases.command("switch")
def switch(
    state: StateOption,
    name: NameArgument,
    target: Annotated[str, typer.Argument(help=_TARGET_HELP)],
    as_json: JsonOption = False,
) -> None:
    """Have NAME stand for this target alone: blue to green in one step.

    Example: trunkline alias switch llama llama@v2
    """
    wanted = _read(lambda: read_target(target), "TARGET")
    _change(
        state,
        name,
        as_json,
        lambda store, wall_s: store.set_targets(name, (wanted,), wall_s, what="switch"),
    )


@aliases.command("rollback")
def rollback(
    state: StateOption,
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
    _change(state, name, as_json, lambda store, wall_s: store.rollback(name, wall_s, to))


@aliases.command("mirror")
def mirror(
    state: StateOption,
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
    if target is not None and share is not None:
        shadow = Mirror(_read(lambda: read_target(target), "TARGET"), share)
    _change(state, name, as_json, lambda store, wall_s: store.set_mirror(name, shadow, wall_s))


@aliases.command("fallback")
def fallback(
    state: StateOption,
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
    chain = (
        ()
        if models is None
        else _read(lambda: tuple(read_target(each.strip()) for each in models.split(",")), "MODELS")
    )
    _change(state, name, as_json, lambda store, wall_s: store.set_fallback(name, chain, wall_s))


@aliases.command("list")
def list_aliases(state: StateOption, as_json: JsonOption = False) -> None:
    """List aliases: what they stand for, their shadows and fallbacks.

    Example: trunkline alias list --json
    """
    with opened(state) as store:
        records = store.aliases.list()
    if as_json:
        print_json(
            [
                _facts(each.alias) | {"created_s": each.created_s, "changed_s": each.changed_s}
                for each in records
            ]
        )
        return
    rows = [[each.alias.name, *_cells(each.alias), moment(each.changed_s)] for each in records]
    print_table(["NAME", "STANDS FOR", "STICKY", "MIRROR", "FALLBACK", "CHANGED"], rows, "no aliases")


@aliases.command("history")
def history(state: StateOption, name: NameArgument, as_json: JsonOption = False) -> None:
    """List the latest changes of NAME, the newest last, with what it was after each.

    Example: trunkline alias history llama
    """
    with opened(state) as store:
        changes = store.aliases.history(name)
    if as_json:
        print_json(
            [
                {
                    "change": each.id,
                    "at_s": each.at_s,
                    "what": each.what,
                    "alias": None if each.alias is None else _facts(each.alias),
                }
                for each in changes
            ]
        )
        return
    rows = [
        [
            str(each.id),
            moment(each.at_s),
            each.what,
            *(["no alias", "", "", ""] if each.alias is None else _cells(each.alias)),
        ]
        for each in changes
    ]
    columns = ["CHANGE", "AT", "WHAT", "STANDS FOR", "STICKY", "MIRROR", "FALLBACK"]
    print_table(columns, rows, f"nothing is known of {name!r}")


@aliases.command("remove")
def remove(state: StateOption, name: NameArgument) -> None:
    """Forget NAME as an alias. If it is a model's too, requests go to whatever serves that, in any version.

    Example: trunkline alias remove llama-test
    """
    with opened(state) as store:
        store.aliases.remove(name, time.time())
    note(f"{name!r} is no alias any more. To have it back: trunkline alias rollback {name}")


def _change(state: Path, name: str, as_json: bool, change: Callable[[AliasStore, float], Alias]) -> None:
    """Make a change and say what NAME is then."""
    with opened(state) as store:
        alias = change(store.aliases, time.time())
    if as_json:
        print_json(_facts(alias))
        return
    note(f"{name!r} stands for {_shares(alias)}.")
    if alias.mirror is not None:
        note(f"{alias.mirror.share:.3g} of its requests are also sent to {alias.mirror.target}.")
    if alias.fallback:
        note(f"For clients that allow it: {_names(alias.fallback)}.")


def _read(read: Callable[[], _T], hint: str) -> _T:
    try:
        return read()
    except BadAlias as error:
        raise typer.BadParameter(str(error), param_hint=hint) from None


def _facts(alias: Alias) -> dict[str, Any]:
    whole = sum(target.weight for target in alias.stands_for)
    return (
        {"name": alias.name}
        | alias.to_dict()
        | {"targets": [each.to_dict() | {"share": each.weight / whole} for each in alias.stands_for]}
    )


def _cells(alias: Alias) -> list[str]:
    mirror = "" if alias.mirror is None else f"{alias.mirror.target} {alias.mirror.share:.3g}"
    return [_shares(alias), "yes" if alias.sticky else "no", mirror, _names(alias.fallback)]


def _shares(alias: Alias) -> str:
    whole = sum(target.weight for target in alias.stands_for)
    if len(alias.stands_for) == 1:
        return str(alias.stands_for[0])
    return ", ".join(f"{each} {100 * each.weight / whole:.3g} %" for each in alias.stands_for)


def _names(targets: tuple[Target, ...]) -> str:
    return ", ".join(map(str, targets))
