"""The options of ``trunkline doctor``."""

from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from gateway.cli_support.console import number_option

MIB = 1024 * 1024


class HostKind(StrEnum):
    """What to look at."""

    GATEWAY = "gateway"
    AGENT = "agent"
    WAY = "way"


@dataclass(frozen=True)
class DoctorOptions:
    """What the caller wants."""

    context: typer.Context
    through: Annotated[
        str | None,
        typer.Option(metavar="URL", help="Measure the proxy at this URL, which leads to the gateway."),
    ] = None
    url: Annotated[
        str | None,
        typer.Option(
            "--url", "--gateway", envvar="TRUNKLINE_URL", metavar="URL", help="The gateway's own address."
        ),
    ] = None
    key: Annotated[
        str | None,
        typer.Option(
            envvar="TRUNKLINE_KEY",
            metavar="KEY",
            show_default=False,
            help="A key; for all checks with a role.",
        ),
    ] = field(default=None, repr=False)
    ca_file: Annotated[
        Path | None,
        typer.Option(envvar="TRUNKLINE_CA_FILE", metavar="FILE", help="Certificates to trust for its TLS."),
    ] = None
    on: Annotated[
        list[HostKind] | None,
        typer.Option(
            help="Look at this only; may be repeated. Default: what is found on this host, and the way."
        ),
    ] = None
    only: Annotated[
        list[str] | None,
        typer.Option(metavar="ID", help="Run these checks, and what they need; may be repeated."),
    ] = None
    model: Annotated[str | None, typer.Option(help="The model that is asked. Default: any.")] = None
    config: Annotated[
        Path | None, typer.Option(readable=False, help="The gateway's file of settings.", metavar="FILE")
    ] = None
    state: Annotated[
        Path | None,
        typer.Option(
            envvar="TRUNKLINE_STATE", readable=False, help="The gateway's state directory.", metavar="DIR"
        ),
    ] = None
    agent_config: Annotated[
        Path | None, typer.Option(readable=False, help="The agent's file of settings.", metavar="FILE")
    ] = None
    agent_state: Annotated[
        Path | None, typer.Option(readable=False, help="The agent's state directory.", metavar="DIR")
    ] = None
    engine: Annotated[
        list[str] | None,
        typer.Option(help="An engine to look at on an agent's host; may be repeated.", metavar="URL"),
    ] = None
    idle: Annotated[float, number_option("Seconds of silence to try.", "--idle")] = 20.0
    body: Annotated[int, typer.Option(metavar="BYTES", min=1, help="Length of a body to try.")] = 16 * MIB
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False
