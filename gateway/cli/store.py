"""``trunkline store``: what is done to a store on a PostgreSQL server as a whole."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from gateway.cli.options import (
    ClusterKeyOption,
    JsonOption,
    StateOption,
    StoreOption,
    StorePasswordOption,
    store_address,
)
from gateway.cli_support.console import fail, note, print_json, print_table
from gateway.domain.state_dir import own_state_dir
from gateway.domain.store_address import StoreAddress
from shared.process.command_line import command_group

store = command_group(
    "The store on a PostgreSQL server, which several gateways share.", example="trunkline store check"
)


def register(app: typer.Typer) -> None:
    """Add ``store`` to a command line."""
    app.add_typer(store, name="store")


@store.command("init")
def init(
    state: StateOption = None,
    url: StoreOption = None,
    cluster_key: ClusterKeyOption = None,
    password_file: StorePasswordOption = None,
) -> None:
    """Make what gateways share: the tables, the cluster key, and the gateway's own key wrapped with it.

    What is there already is checked and used, so it may be run again. Afterwards every gateway with this
    store and a copy of the cluster key's file can start.

    Example: trunkline store init --store postgresql://trunkline@db/trunkline --cluster-key cluster.key
    """
    state_dir, address = _chosen(state, url, cluster_key, password_file)
    with _errors():
        from gateway.storage.administration import init_store

        found = init_store(state_dir, address)
    note(f"  store        {address}{_made(found.made_tables)}")
    note(f"  cluster key  {found.cluster_key}, {found.cluster_key_id}{_made(found.made_cluster_key)}")
    note(f"  gateway      {found.gateway_id}{_made(found.made_gateway_key)}")
    note("Copy the cluster key's file to the host of every gateway, and keep one apart from the store.")


def _made(new: bool) -> str:
    return ": made" if new else ": was there"


@store.command("migrate")
def migrate(
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say what would be done; change nothing.")
    ] = False,
    state: StateOption = None,
    url: StoreOption = None,
    cluster_key: ClusterKeyOption = None,
    password_file: StorePasswordOption = None,
) -> None:
    """Make the tables, or bring them to the newest version.

    A gateway does so itself at its start. This is for users who may not create tables, and to do it before.

    Example: trunkline store migrate --dry-run --store postgresql://trunkline@db/trunkline
    """
    _, address = _chosen(state, url, cluster_key, password_file)
    with _errors():
        from gateway.storage.postgres import PostgresDatabase, inspect_server
        from gateway.storage.schema import SCHEMA_VERSION

        before = inspect_server(address).version
        if not dry_run:
            PostgresDatabase(address).close()
    if before >= SCHEMA_VERSION:
        note(f"{address} is of schema {before}: there is nothing to do.")
        return
    what = "tables of" if before == 0 else f"schema {before} to"
    note(f"{address}: {what} schema {SCHEMA_VERSION} {'would be' if dry_run else 'were'} made.")


@store.command("check")
def check(
    state: StateOption = None,
    url: StoreOption = None,
    cluster_key: ClusterKeyOption = None,
    password_file: StorePasswordOption = None,
    as_json: JsonOption = False,
) -> None:
    """Check that the server can be reached and used, and that what is there is sound; exit code 1 if not.

    Looks at versions, clocks, permissions, every record and the gateway's own key, and counts rows. It
    changes nothing.

    Example: trunkline store check --store postgresql://trunkline@db/trunkline
    """
    state_dir, address = _chosen(state, url, cluster_key, password_file)
    with _errors():
        from gateway.storage.administration import check_store

        report = check_store(state_dir, address)
    if as_json:
        print_json(
            {
                "sound": report.sound,
                "facts": report.facts,
                "notes": report.notes,
                "findings": report.findings,
                "rows": report.rows,
            }
        )
    else:
        for text in report.facts:
            note(text)
        for text in report.notes:
            note(f"note: {text}")
        for text in report.findings:
            note(f"WRONG: {text}")
        if report.rows:
            _print_rows(report.rows)
    if not report.sound:
        raise typer.Exit(1)


@store.command("import")
def import_command(
    replace: Annotated[
        bool, typer.Option("--replace", help="Delete what is in the store on the server first.")
    ] = False,
    state: StateOption = None,
    url: StoreOption = None,
    cluster_key: ClusterKeyOption = None,
    password_file: StorePasswordOption = None,
) -> None:
    """Copy a state directory's database and the gateway's key into an empty store on a server.

    All of it or nothing. Stop the gateway first; its files stay as they are. Then start it on the same state
    directory with --store.

    Example: trunkline store import --state /var/lib/trunkline --store postgresql://trunkline@db/trunkline
    """
    if url is None:
        raise typer.BadParameter("say where to import to", param_hint="--store")
    state_dir, address = _chosen(state, url, cluster_key, password_file)
    with _errors():
        from gateway.storage.administration import import_files

        rows = import_files(state_dir, address, replace=replace)
    _print_rows(rows)
    path = address.cluster_key or state_dir / "cluster.key"
    note(f"{state_dir} is in {address}. Every gateway there needs the cluster key {path}.")


def _chosen(
    state: Path | None, url: str | None, cluster_key: Path | None, password_file: Path | None
) -> tuple[Path, StoreAddress]:
    """The state directory and the server: of the option, or of the gateway of that directory."""
    state_dir = state or own_state_dir()
    address = store_address(url, cluster_key, password_file)
    if address is None:
        with _errors():
            from gateway.storage.address_file import noted_address

            address = noted_address(state_dir)
    if address is None:
        raise typer.BadParameter(
            f"the store of {state_dir} is a file, which the gateway migrates and backs up itself; for one on "
            "a server give its address",
            param_hint="--store",
        )
    return state_dir, address


@contextlib.contextmanager
def _errors() -> Iterator[None]:
    """Errors of the store end the command with code 1."""
    from gateway.storage.errors import RecordError, StateError

    try:
        yield
    except ImportError as error:
        fail(f"PostgreSQL needs its driver ({error}): pip install 'trunkline[postgres]'")
    except (StateError, RecordError) as error:
        fail(str(error))


def _print_rows(rows: dict[str, Any]) -> None:
    print_table(["TABLE", "ROWS"], [[name, str(count)] for name, count in rows.items()], "no tables")
