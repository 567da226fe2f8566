"""The command ``trunkline``: a root that knows no command itself.

Each package registers its own through the entry point group ``trunkline.commands``, whose members are
functions ``commands(root: Root) -> None``; so this file imports neither the gateway nor the agent. A command
is registered by its name, its summary and the module that has it: the module is imported when the command is
used, and not before, so that one command does not wait for the imports of all others.
"""

import errno
import os
import sys
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from importlib import import_module
from importlib.metadata import entry_points, version
from types import ModuleType
from typing import Annotated, Any

import typer
from typer.core import TyperCommand
from typer.main import get_group

from shared.process.command_line import CommandApp, PlainGroup
from shared.process.startup import without_collection

GROUP = "trunkline.commands"

ENVIRONMENT = """Environment of the commands that ask a gateway:

TRUNKLINE_URL: the address of the gateway to ask

TRUNKLINE_KEY: a key with a role there

TRUNKLINE_CA_FILE: certificates to trust for its TLS

TRUNKLINE_STATE: the gateway's state directory on this machine, instead of its address

The settings of gateway and agent: TRUNKLINE_GATEWAY_… and TRUNKLINE_AGENT_…
"""

_UNWRITTEN = frozenset((errno.EPIPE, errno.ENOSPC, errno.EDQUOT, errno.EFBIG))
"""Whoever read what is printed has gone, or the file that it goes to has no room."""


class RootGroup(CommandApp):
    """The root of the command line, to which packages add their commands."""

    def __init__(self, **options: Any) -> None:
        self._later: dict[str, tuple[str, str]] = {}
        self._checks: dict[str, str] = {}
        known = {"later": self._later, "checks": self._checks}
        super().__init__(cls=type("Commands", (_Commands,), known), **options)
        self.callback()(_root)

    def later(self, module: str, commands: Mapping[str, str]) -> None:
        """Add commands by name and summary; on first use ``module.register(app: typer.Typer)`` adds them."""
        self._later.update({name: (module, summary) for name, summary in commands.items()})

    def checks(self, host: str, module: str) -> None:
        """Have ``trunkline doctor`` run the checks of ``module`` on a ``host``, such as ``agent``. The
        module is a :class:`shared.process.checks.HostChecks`."""
        self._checks[host] = module


class _Commands(PlainGroup):
    """A group some of whose commands are only names until they are used."""

    later: Mapping[str, tuple[str, str]] = {}
    """Name → module and summary of a command that may not be imported yet."""
    checks: Mapping[str, str] = {}
    """Kind of host → module with its checks, for ``trunkline doctor``."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._unloaded = {name: module for name, (module, _) in self.later.items()}
        for name, (_, summary) in self.later.items():
            self.commands.setdefault(name, TyperCommand(name, help=summary))

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """The command itself, imported: it runs, is asked for its help, or completes what was typed."""
        if args[0] in self._unloaded:
            self._load(self._unloaded[args[0]])
        return super().resolve_command(ctx, args)

    def _load(self, module: str) -> None:
        with without_collection():
            found = _commands_of(import_module(module))
        for name, command in found.items():
            if name in self.later:
                self.commands[name] = command
                self._unloaded.pop(name, None)


@cache
def _commands_of(module: ModuleType) -> Mapping[str, Any]:
    """What it registers, by name: made once, for however many roots there are in a process."""
    app = CommandApp()
    app.callback()(_root)  # or one command alone would be no group
    module.register(app)
    return get_group(app).commands


def _show_version(wanted: bool) -> None:
    if wanted:
        from shared.process.build import describe_build

        typer.echo(f"trunkline {version('trunkline')}\n{describe_build()}")
        raise typer.Exit


def _root(
    show_version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """One endpoint in front of every GPU you own: agents dial out, clients use any OpenAI SDK.

    Example: trunkline quickstart
    """


def build() -> RootGroup:
    """The whole command line, commands of every installed package included."""
    app = RootGroup(
        name="trunkline",
        no_args_is_help=True,
        add_completion=True,
        pretty_exceptions_enable=False,
        epilog=ENVIRONMENT,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    # Each package once, in a fixed order so that --help is the same everywhere.
    for entry in sorted(set(entry_points(group=GROUP)), key=lambda entry: entry.name, reverse=True):
        entry.load()(app)
    return app


def main() -> None:
    """Entry point of the console script. Exit codes: 0 done, 1 failed, 2 wrong usage."""
    try:
        try:
            build()()
        finally:
            if sys.stdout is not None:
                sys.stdout.flush()
    except OSError as error:
        if error.errno not in _UNWRITTEN or error.filename is not None:
            raise
        if sys.stdout is not None:  # nothing is left to be flushed to it
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if not isinstance(error, BrokenPipeError):
            with suppress(OSError):
                sys.stderr.write(f"trunkline: this cannot be written: {error.strerror}\n")
        sys.exit(1)


if __name__ == "__main__":
    main()
