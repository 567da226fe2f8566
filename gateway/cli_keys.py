"""``trunkline key``: API keys, which let clients in."""

import time
from typing import Annotated, Any

import typer

from gateway.cli_output import moment, note, print_json, print_table
from gateway.cli_state import JsonOption, StateOption, opened
from gateway.store import DEFAULT_TENANT, KeyRecord
from gateway.where import BadWhere, Where, read_where

keys = typer.Typer(no_args_is_help=True, help="API keys for clients.")


def register(app: typer.Typer) -> None:
    """Add ``key`` to a command line."""
    app.add_typer(keys, name="key")


@keys.command("create")
def create_key(
    state: StateOption,
    name: Annotated[str, typer.Option(help="What to call it: shown in lists and used to revoke it.")],
    tenant: Annotated[str, typer.Option(help="Whom it belongs to.")] = DEFAULT_TENANT,
    where: Annotated[
        list[str] | None,
        typer.Option(
            help="Its requests run only on agents with this label. Of values of one label any will do; all "
            "labels must be right. Repeatable. [default: anywhere]",
            metavar="K=V[,K=V]",
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Make an API key and print it as the last line. It is shown this once.

    Example: export OPENAI_API_KEY=$(trunkline key create --name laptop --where region=eu)
    """
    only = _where(where)
    with opened(state, create=True) as store:
        text = store.keys.create(name, tenant, time.time(), only)
    if as_json:
        print_json({"key": text, "name": name, "tenant": tenant, "where": only and only.to_dict()})
        return
    where_text = "" if only is None else f", for agents with {only} only"
    note(
        f"API key {name!r} of tenant {tenant!r}{where_text}. Only its hash is kept: "
        "store it now, it is not shown again."
    )
    print(text)  # noqa: T201


@keys.command("list")
def list_keys(state: StateOption, as_json: JsonOption = False) -> None:
    """List API keys: names and states, never the keys.

    Example: trunkline key list --json
    """
    with opened(state) as store:
        records = store.keys.list()
    if as_json:
        print_json([_key_facts(record) for record in records])
        return
    rows = [
        [
            record.name,
            record.tenant,
            "active" if record.revoked_s is None else "revoked",
            f"sk-tl-…{record.hint}",
            moment(record.created_s),
            "" if record.where is None else str(record.where),
        ]
        for record in records
    ]
    print_table(["NAME", "TENANT", "STATE", "KEY", "CREATED", "WHERE"], rows, "no API keys")


@keys.command("revoke")
def revoke_key(
    name: Annotated[str, typer.Argument(help="Its name.")],
    state: StateOption,
) -> None:
    """Revoke an API key. A running gateway refuses it from the next request on.

    Example: trunkline key revoke laptop
    """
    with opened(state) as store:
        record = store.keys.revoke(name, time.time())
    note(f"API key {record.name!r} is revoked.")


def _where(texts: list[str] | None) -> Where | None:
    """Raises typer.BadParameter."""
    try:
        return read_where(",".join(texts)) if texts else None
    except BadWhere as error:
        raise typer.BadParameter(str(error), param_hint="--where") from None


def _key_facts(record: KeyRecord) -> dict[str, Any]:
    return {
        "id": record.id,
        "name": record.name,
        "tenant": record.tenant,
        "state": "active" if record.revoked_s is None else "revoked",
        "hint": record.hint,
        "created_s": record.created_s,
        "revoked_s": record.revoked_s,
        "where": record.where and record.where.to_dict(),
    }
