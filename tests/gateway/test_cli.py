"""The table of commands, and that a command imports what it needs and no more."""

import subprocess
import sys

import pytest
import typer
from typer.main import get_group

from gateway.cli import COMMANDS

HEAVY = ("asyncio", "cryptography", "prometheus_client", "pydantic", "sqlalchemy", "starlette", "uvicorn")


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
