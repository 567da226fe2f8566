"""``trunkline config``: the settings of the programs on this host, and where each comes from."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from gateway.cli.options import JsonOption
from gateway.cli_support.console import fail, note, print_json
from gateway.cli_support.hosts import registered_hosts
from shared.process.checks import CheckedHost
from shared.process.excerpt import printable


class ProgramKind(StrEnum):
    """Whose settings."""

    GATEWAY = "gateway"
    AGENT = "agent"


def register(app: typer.Typer) -> None:
    """Add ``config`` to a command line."""
    app.command("config")(config_of_programs)


def config_of_programs(
    context: typer.Context,
    show: Annotated[
        bool, typer.Option("--show", help="Print every setting, and where it comes from.")
    ] = False,
    on: Annotated[
        list[ProgramKind] | None,
        typer.Option(help="Of this program only. Default: of those that are used on this host."),
    ] = None,
    config: Annotated[
        Path | None, typer.Option(readable=False, help="The gateway's file of settings.", metavar="FILE")
    ] = None,
    agent_config: Annotated[
        Path | None, typer.Option(readable=False, help="The agent's file of settings.", metavar="FILE")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Check the settings of the gateway and of the agent on this host; with --show print them, without
    secrets.

    What a running program was given as options of its own command line is not known here.

    Example: trunkline config --show --on gateway
    """
    from shared.process.settings import ConfigError

    wanted = tuple(on or ())
    files = {ProgramKind.GATEWAY: config, ProgramKind.AGENT: agent_config}
    found = {}
    for kind, module in registered_hosts(context).items():
        host = CheckedHost(files[ProgramKind(kind)], wanted=ProgramKind(kind) in wanted)
        if host.wanted or (not wanted and module.is_here(host)):
            try:
                found[kind] = module.settings_shown(host)
            except ConfigError as error:
                fail(f"the settings of the {kind} cannot be used: {error}")
    if not found:
        fail("neither a gateway nor an agent is used here: name one with --on")
    if as_json:
        print_json({kind: [each.as_json() for each in shown] for kind, shown in found.items()})
        return
    for kind, shown in found.items():
        if show:
            typer.echo(f"# {kind}")
            for each in shown:
                typer.echo(printable(each.as_line()))
        else:
            note(f"The settings of the {kind} are valid; --show prints them.")
