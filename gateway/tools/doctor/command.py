"""The command ``trunkline doctor``."""

import typer

from gateway.cli_support.console import command_with
from gateway.tools.doctor.options import DoctorOptions


def register(app: typer.Typer) -> None:
    """Add ``doctor`` to a command line."""
    app.command("doctor")(command_with(DoctorOptions, doctor))


def doctor(options: DoctorOptions) -> None:
    """Say what is wrong on this host and on the way to a gateway, and what to do. Changes nothing.

    Exit code 1 when a check failed. docs/doctor.md lists the checks.

    Example: trunkline doctor --url https://llm.example.com --through https://proxy.example.com
    """
    from gateway.tools.doctor.examination import examine

    examine(options)
