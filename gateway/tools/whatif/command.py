"""The command itself. Exit codes: 0 done, 1 it could not be run, 2 wrong usage."""

import typer

from gateway.cli_support.console import command_with
from gateway.tools.whatif.options import WhatIfOptions


def register(parent: typer.Typer) -> None:
    """Add ``trunkline whatif``."""
    parent.command("whatif")(command_with(WhatIfOptions, whatif_command))


def whatif_command(options: WhatIfOptions) -> None:
    """Replay the last hour's requests with another fleet or another policy. Takes the role viewer.

    The simulation of the fleet as it is stands beside what was measured, so that its error is seen. Without a
    change that is all there is to see.

    Example: trunkline whatif --add '2*l4@MODEL'

    Example: trunkline whatif --policy least-outstanding --scale 1.5

    Example: trunkline whatif --export facts.jsonl

    Example: trunkline whatif --facts facts.jsonl --add '2*l4@MODEL'
    """
    from gateway.tools.whatif.asking import carry_out  # the help does without the simulator

    carry_out(options)
