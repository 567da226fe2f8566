"""The options of ``trunkline whatif``."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import typer

from gateway.cli_support.asked_gateway import DEFAULT_URL, CaOption, JsonOption, KeyOption, UrlOption
from gateway.cli_support.console import number_option


@dataclass(frozen=True, slots=True, kw_only=True)
class WhatIfOptions:
    """The options of the command."""

    add: Annotated[
        list[str] | None,
        typer.Option(
            help="More deployments, as '2*l4@MODEL' or '2*l4@MODEL,slots=8,tokens_per_s=40,gpu_hour=0.8'; "
            "without @MODEL where only one is served. 1*same is of the class that most of the model's have.",
            metavar="N*CLASS[@MODEL]",
        ),
    ] = None
    remove: Annotated[
        list[str] | None,
        typer.Option(help="Fewer, as 1*l4@MODEL; 1*any is of any class.", metavar="N*CLASS[@MODEL]"),
    ] = None
    slots: Annotated[
        list[str] | None, typer.Option(help="Slots of each deployment of a model.", metavar="MODEL=N")
    ] = None
    policy: Annotated[str | None, typer.Option(help="Of every model.", metavar="NAME")] = None
    scale: Annotated[float, number_option("Requests come so many times as fast.", metavar="X")] = 1.0
    minutes: Annotated[float, number_option("How much of the past is replayed.", metavar="N")] = 60.0
    max_requests: Annotated[
        int | None, typer.Option(min=1, help="Requests that may wait for one model.", metavar="N")
    ] = None
    max_wait: Annotated[float | None, number_option("How long a request may wait.")] = None
    gpu_hour: Annotated[
        float | None, number_option("What a deployment costs an hour.", metavar="MONEY", least=0.0)
    ] = None
    good_first: Annotated[float | None, number_option("The service level: to the first token.")] = None
    good_each: Annotated[float | None, number_option("And for each further one.")] = None
    seed: Annotated[int, typer.Option(min=0, help="Of what policies draw by chance.")] = 0
    facts: Annotated[
        list[Path] | None,
        typer.Option(
            help="Replay exported facts here, without a gateway; of several gateways, all.", metavar="FILE"
        ),
    ] = None
    export: Annotated[
        Path | None,
        typer.Option(help="Write the facts into a file instead. No content is in it.", metavar="FILE"),
    ] = None
    url: UrlOption = DEFAULT_URL
    key: KeyOption = field(default=None, repr=False)
    ca_file: CaOption = None
    as_json: JsonOption = False
