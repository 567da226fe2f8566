"""``trunkline store``: what it prints, and how it ends."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from gateway.cli.store import store as app
from gateway.domain.store_address import StoreAddress
from gateway.storage import Store
from gateway.storage.postgres import inspect_server


@pytest.fixture
def state(tmp_path: Path) -> Path:
    with Store.open(tmp_path / "state") as store:
        store.keys.create("a", "t", 1.0)
    return tmp_path / "state"


def run(*arguments: str, state: Path, address: StoreAddress | None = None) -> Result:
    server = () if address is None else ("--store", address.url)
    return CliRunner().invoke(app, [*arguments, *server, "--state", str(state)])


def test_migrating_makes_the_tables_once_and_a_dry_run_none(
    state: Path, postgres_address: StoreAddress
) -> None:
    dry = run("migrate", "--dry-run", state=state, address=postgres_address)
    assert (dry.exit_code, "would be made" in dry.stderr) == (0, True)
    assert inspect_server(postgres_address).version == 0
    first = run("migrate", state=state, address=postgres_address)
    assert (first.exit_code, "were made" in first.stderr) == (0, True)
    again = run("migrate", state=state, address=postgres_address)
    assert (again.exit_code, "nothing to do" in again.stderr) == (0, True)


def test_a_store_is_imported_and_checked(state: Path, postgres_address: StoreAddress) -> None:
    empty = run("check", state=state, address=postgres_address)
    assert (empty.exit_code, "WRONG: there are no tables" in empty.stderr) == (1, True)
    done = run("import", state=state, address=postgres_address)
    assert done.exit_code == 0, done.stderr
    assert ["api_keys", "1"] in [line.split() for line in done.stdout.splitlines()]
    assert str(state / "cluster.key") in done.stderr
    again = run("import", state=state, address=postgres_address)
    assert (again.exit_code, "--replace" in again.stderr) == (1, True)
    assert run("import", "--replace", state=state, address=postgres_address).exit_code == 0
    checked = run("check", "--json", state=state, address=postgres_address)
    assert checked.exit_code == 0
    assert json.loads(checked.stdout)["sound"] is True


def test_the_store_of_the_gateway_on_the_directory_is_checked(
    tmp_path: Path, postgres_address: StoreAddress
) -> None:
    Store.open(tmp_path, address=postgres_address, serve=True).close()
    assert run("check", state=tmp_path).exit_code == 0


def test_a_store_is_made_for_several_gateways_and_again_nothing_is(
    tmp_path: Path, postgres_address: StoreAddress
) -> None:
    line = ["init", "--store", postgres_address.url, "--cluster-key", str(tmp_path / "cluster.key")]
    first, again = CliRunner().invoke(app, line), CliRunner().invoke(app, line)
    assert (first.exit_code, first.stderr.count(": made"), first.stderr.count(": was there")) == (0, 3, 0)
    assert (again.exit_code, again.stderr.count(": made"), again.stderr.count(": was there")) == (0, 0, 3)
    assert first.stderr.replace(": made", ": was there") == again.stderr


def test_files_are_no_server_and_it_is_said_who_looks_after_them(state: Path) -> None:
    for arguments in (("check",), ("init",), ("migrate",), ("import",)):
        result = run(*arguments, state=state)
        assert result.exit_code == 2, arguments
        assert "--store" in result.stderr


def test_a_server_that_is_away_is_a_failure(state: Path) -> None:
    away = StoreAddress("postgresql://u:s3cret@127.0.0.1:1/d")
    for command in ("check", "init", "migrate", "import"):
        result = run(command, state=state, address=away)
        assert (result.exit_code, "cannot reach PostgreSQL" in result.stderr) == (1, True)
        assert "s3cret" not in result.output
