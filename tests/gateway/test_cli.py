"""The table of commands, and that a command imports what it needs and no more."""

import subprocess
import sys
from pathlib import Path

import pytest
import typer
from typer.main import get_group

from gateway.cli import COMMANDS
from gateway.store import Store

HEAVY = ("asyncio", "cryptography", "prometheus_client", "sqlalchemy", "starlette", "uvicorn")


@pytest.mark.parametrize("module", COMMANDS)
def test_every_command_in_the_table_is_in_its_module(module: str) -> None:
    app = typer.Typer()
    app.callback()(lambda: None)
    __import__(module, fromlist=["register"]).register(app)
    found = get_group(app).commands
    assert set(found) == set(COMMANDS[module])
    assert not any(command.hidden for command in found.values())


def imported(*arguments: str) -> set[str]:
    """Which of the heavy packages ``trunkline ARGUMENTS`` imports."""
    program = (
        "import sys; from shared.cli import build\n"
        f"try: build()({list(arguments)!r})\n"
        f"except SystemExit: print('imported:', *[name for name in {HEAVY!r} if name in sys.modules])"
    )
    process = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    (line,) = [each for each in process.stdout.splitlines() if each.startswith("imported:")]
    return set(line.split()[1:])


@pytest.mark.parametrize("arguments", [("--help",), ("--version",)])
def test_the_root_imports_no_command(arguments: tuple[str, ...]) -> None:
    assert imported(*arguments) == set()


ASKING = ["status", "models", "drain x", "key list", "token list", "agents list", "alias list", "price list"]


@pytest.mark.parametrize("command", ASKING)
def test_what_asks_a_running_gateway_imports_no_store(command: str) -> None:
    assert imported(*command.split(), "--url", "http://127.0.0.1:1", "--key", "k") == set()


def test_what_looks_at_the_state_imports_no_server(tmp_path: Path) -> None:
    Store.open(tmp_path / "state").close()
    found = imported("key", "list", "--state", str(tmp_path / "state"))
    assert found == {"asyncio", "cryptography", "sqlalchemy"}
