"""The table of commands, and that a command imports what it needs and no more."""

import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.main import get_group

from gateway.cli import COMMANDS
from gateway.observability.audit import append_pending_acts, audit_files
from gateway.observability.audit.records import AuditEntry
from gateway.storage import Store
from tests.gateway.observability.audit.logs import append

HEAVY = ("asyncio", "cryptography", "prometheus_client", "sqlalchemy", "starlette", "structlog", "uvicorn")


@pytest.mark.parametrize("module", COMMANDS)
def test_every_command_in_the_table_is_in_its_module(module: str) -> None:
    app = typer.Typer()
    app.callback()(lambda: None)
    __import__(module, fromlist=["register"]).register(app)
    found = get_group(app).commands
    assert set(found) == set(COMMANDS[module])
    assert not any(command.hidden for command in found.values())


def imported(*lines: str) -> dict[str, set[str]]:
    """Which of the heavy packages each ``trunkline LINE``, or one before it, imports. All run in one process,
    in this order, so that it takes a second: the first that imports something names it."""
    program = (
        "import sys; from shared.process.cli import build; trunkline = build()\n"
        f"for line in {list(lines)!r}:\n"
        "  try: trunkline(line.split())\n"
        f"  except SystemExit: print('imported:', *[name for name in {HEAVY!r} if name in sys.modules])"
    )
    process = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    found = [set(each.split()[1:]) for each in process.stdout.splitlines() if each.startswith("imported:")]
    return dict(zip(lines, found, strict=True))


def nothing(*lines: str) -> dict[str, set[str]]:
    """What :func:`imported` says where none imports anything heavy."""
    return {line: set() for line in lines}


def test_the_root_imports_no_command() -> None:
    assert imported("--help", "--version") == nothing("--help", "--version")


ASKING = ["status", "models", "drain x", "load x", "evict x"]
ASKING += ["key list", "token list", "agents list", "alias list", "price list"]
ASKING += ["usage", "identity show", "audit verify", "audit export"]


def test_what_asks_a_running_gateway_imports_no_store() -> None:
    lines = [f"{command} --url http://127.0.0.1:1 --key k" for command in ASKING]
    assert imported(*lines) == nothing(*lines)


LOOKING = ["key list", "usage", "identity show", "audit verify", "audit export", "tenant set acme --rpm 5"]


def test_what_works_on_the_state_imports_no_server(tmp_path: Path) -> None:
    with Store.open(tmp_path / "state") as store:
        append_pending_acts(store)
        append(audit_files(store), [AuditEntry(1.0, "test", {})], 1.0)
    found = imported(*(f"{command} --state {tmp_path / 'state'}" for command in LOOKING))
    assert list(found.values()) == [{"asyncio", "cryptography", "sqlalchemy"}] * len(LOOKING)


def test_no_help_imports_what_its_command_needs() -> None:
    last = ["simulate", "simulate-week", "gateway", "bench"]
    names = [name for commands in COMMANDS.values() for name in commands if name not in last]
    found = imported(*(f"{name} --help" for name in [*names, *last]))
    assert found == {
        **nothing(*(f"{name} --help" for name in names)),
        **{f"{name} --help": {"asyncio"} for name in last},
    }


def commands_below(group: Any, *path: str) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Every command that can be run, with its words."""
    for name, command in group.commands.items():
        below = getattr(command, "commands", {})
        if not below or command.invoke_without_command:
            yield (*path, name), command
        if below:
            yield from commands_below(command, *path, name)


def every_command() -> Iterator[tuple[tuple[str, ...], Any]]:
    for module in COMMANDS:
        app = typer.Typer()
        app.callback()(lambda: None)
        import_module(module).register(app)
        yield from commands_below(get_group(app))


ALL = list(every_command())


OLD = [
    ("status", "--gateway"),
    ("models", "--gateway"),
    ("drain", "--gateway"),
    ("token create", "--model"),
    ("agents set", "--model"),
    ("bench", "--api-key"),
]


@pytest.mark.parametrize(("words", "option"), OLD)
def test_old_names_of_options_are_taken_still(words: str, option: str) -> None:
    (command,) = [command for found, command in ALL if " ".join(found) == words]
    assert any(option in parameter.opts for parameter in command.params)


NEW = {"--gateway": "--url", "--model": "--models", "--api-key": "--key", "--log-style": "--log-format"}


@pytest.mark.parametrize(("words", "command"), ALL, ids=[" ".join(words) for words, _ in ALL])
def test_one_thing_has_one_name(words: tuple[str, ...], command: Any) -> None:
    for parameter in command.params:
        for old in set(parameter.opts) & NEW.keys():
            alone = old == "--model" and not parameter.multiple  # one model's name is no pattern
            assert alone or NEW[old] in parameter.opts, f"{' '.join(words)} {old}"
