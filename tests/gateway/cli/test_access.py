"""Which gateway a command works on: options, then the environment, in an order that old scripts know."""

from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner, Result

from gateway.api.admin.resources.table import OPERATIONS
from gateway.cli import access as cli_access
from gateway.cli.access import GatewayAccess, HttpAccess, StateAccess, with_gateway_options
from gateway.domain.store_address import StoreAddress
from gateway.storage import Store
from gateway.storage.address_file import note_address

URL = "http://127.0.0.1:1"


@pytest.fixture
def usual(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The usual place of a state on this machine, empty."""
    monkeypatch.setattr(cli_access, "own_state_dir", lambda: tmp_path / "usual")
    return tmp_path / "usual"


def chosen(*arguments: str, **environment: str) -> tuple[str, Result]:
    """What a command with these options and this environment works on, and what it says."""
    app, found = typer.Typer(), []

    @app.command()
    @with_gateway_options
    def show(gateway: GatewayAccess, name: str, often: int = 1) -> None:
        """Show."""
        assert (name, often) == ("it", 2)
        if isinstance(gateway, StateAccess):
            server = "" if gateway.address is None else f" at {gateway.address}"
            found.append(f"{gateway.state.name}{server}")
        else:
            found.append(f"{gateway.url} {gateway.key}")

    result = CliRunner().invoke(app, ["it", "--often", "2", *arguments], env=environment)
    return (found[0] if found else ""), result


SERVER, NAMED = "postgresql://u:s3cret@h/d", "PostgreSQL at h, database d"
ENVIRONMENT = {"TRUNKLINE_URL": URL, "TRUNKLINE_KEY": "k"}
CASES: list[tuple[list[str], dict[str, str], str]] = [
    ([], {}, "usual"),
    (["--state", "there"], {}, "there"),
    ([], {"TRUNKLINE_STATE": "there"}, "there"),
    ([], ENVIRONMENT, f"{URL} k"),
    (["--url", "https://x", "--key", "o"], ENVIRONMENT | {"TRUNKLINE_STATE": "there"}, "https://x o"),
    (["--gateway", "https://x"], ENVIRONMENT, "https://x k"),
    (["--key", "o"], {}, "http://127.0.0.1:8700 o"),
    (["--state", "there"], ENVIRONMENT, "there"),
    (["--state", "there", "--key", "o"], ENVIRONMENT, "there"),
    ([], ENVIRONMENT | {"TRUNKLINE_STATE": "there"}, "there"),
    (["--store", SERVER], ENVIRONMENT, f"usual at {NAMED}"),
    ([], ENVIRONMENT | {"TRUNKLINE_STORE": SERVER}, f"usual at {NAMED}"),
    (["--state", "there"], {"TRUNKLINE_STORE": SERVER}, f"there at {NAMED}"),
    (["--url", "https://x"], ENVIRONMENT | {"TRUNKLINE_STORE": SERVER}, "https://x k"),
]


@pytest.mark.usefixtures("usual")
@pytest.mark.parametrize(("arguments", "environment", "expected"), CASES)
def test_options_count_before_the_environment_and_a_state_before_an_address(
    arguments: list[str], environment: dict[str, str], expected: str
) -> None:
    assert chosen(*arguments, **environment)[0] == expected


def test_on_a_gateways_host_commands_go_on_working_on_its_state_and_say_so(usual: Path) -> None:
    Store.open(usual).close()
    what, result = chosen(**ENVIRONMENT)
    assert what == "usual"
    assert (
        result.stderr == f"This works on the state in {usual}; for the gateway at TRUNKLINE_URL give --url.\n"
    )
    assert chosen()[1].stderr == ""


@pytest.mark.usefixtures("usual")
def test_two_gateways_at_once_are_wrong_usage() -> None:
    what, result = chosen("--state", "there", "--url", URL)
    assert (what, result.exit_code) == ("", 2)


def test_a_server_and_a_running_gateway_at_once_are_wrong_usage() -> None:
    result = chosen("--store", SERVER, "--url", URL)[1]
    assert (result.exit_code, "--store or --url" in result.output) == (2, True)


def test_an_address_of_a_server_that_cannot_be_is_wrong_usage_and_not_repeated() -> None:
    result = chosen("--store", "postgresql://u:s3cret/x@h/d")[1]
    assert result.exit_code == 2
    assert "--store" in result.output
    assert "s3cret" not in result.output


def test_on_the_host_of_a_gateway_with_a_server_commands_work_on_its_state(usual: Path) -> None:
    usual.mkdir()
    note_address(usual, StoreAddress(SERVER))
    assert chosen(**ENVIRONMENT)[0] == "usual"


def test_a_gateway_that_runs_wants_a_key(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(typer.BadParameter, match="a key with a role"):
        HttpAccess(URL, None, None).run("list_keys")


def test_every_operation_has_what_does_it_and_what_asks_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, str]] = []

    class Client:
        def __init__(self, *_: object) -> None: ...
        def ask(self, method: str, path: str, *, body: Any = None, timeout_s: float) -> dict[str, Any]:
            asked.append((method, path))
            return {}

    monkeypatch.setattr("gateway.cli_support.gateway_client.GatewayClient", Client)
    access = HttpAccess(URL, "k", None)
    for operation in OPERATIONS.values():
        if operation.only_here:
            with pytest.raises(typer.BadParameter, match="on the gateway's host"):
                access.run(operation.name)
            continue
        holds_slashes = ":path}" in operation.path
        access.run(operation.name, *["a/b *?" if holds_slashes else "ab *?"] * operation.path.count("{"))
    assert all(callable(operation.run) for operation in OPERATIONS.values())
    assert {("GET", "keys"), ("POST", "keys"), ("PATCH", "keys/ab%20%2A%3F")} <= set(asked)
    assert ("POST", "aliases/a%2Fb%20%2A%3F/rollback") in asked


def test_a_name_that_no_record_has_is_wrong_usage_on_a_state_and_over_http(tmp_path: Path) -> None:
    for access in (StateAccess(tmp_path / "none"), HttpAccess(URL, "k", None)):
        for name in ("", "a/b", "a\x1b[31m"):
            with pytest.raises(typer.BadParameter, match="names nothing here"):
                access.run("revoke_key", name)
        with pytest.raises(typer.BadParameter, match="names nothing here"):
            access.run("remove_alias", "")


@pytest.mark.parametrize("value", [float("inf"), float("nan"), 10**30])
def test_a_number_that_json_has_not_is_not_sent_as_another(value: float) -> None:
    with pytest.raises(typer.BadParameter, match="sent"):
        HttpAccess(URL, "k", None).run("set_tenant", "acme", weight=value)


def test_a_gateway_that_cannot_be_asked_at_all_is_wrong_usage() -> None:
    for url in ("", "http://gateway.example.com", "gateway"):
        with pytest.raises(typer.BadParameter):
            HttpAccess(url, "k", None).run("list_keys")
