"""``trunkline scaling``: how many replicas of each model are wanted."""

import time
from collections.abc import Iterator
from typing import Annotated, Any

import typer

from gateway.cli.options import CaOption, JsonOption, KeyOption, UrlOption
from gateway.cli_support.asked_gateway import DEFAULT_URL, gateway_client
from gateway.cli_support.console import print_json, print_table
from shared.process.excerpt import printable

WATCH_S = 5.0
_COLUMNS = [
    "MODEL",
    "CLASS",
    "READY",
    "STARTING",
    "WANTED",
    "QUEUED GPU-S",
    "A HOUR",
    "ENDS",
    "FORECAST",
    "WHY",
]


def register(app: typer.Typer) -> None:
    """Add the command to a command line."""
    app.command("scaling")(scaling)


def scaling(
    url: UrlOption = DEFAULT_URL,
    key: KeyOption = None,
    ca_file: CaOption = None,
    as_json: JsonOption = False,
    forecasts: Annotated[
        bool, typer.Option("--forecast", help="Say of each forecast why it acts or does not.")
    ] = False,
    watch: Annotated[bool, typer.Option("--watch", help="Ask again every five seconds.")] = False,
) -> None:
    """Show how many replicas of each model are wanted on which class of device. Takes the role viewer.

    Example: trunkline scaling --watch
    """
    while True:
        with gateway_client(url, key, ca_file) as client:
            found = client.get("scaling", "models")["models"]
        if as_json:
            print_json(found)
        else:
            rows = [row for model, said in found.items() for row in _rows(model, said)]
            print_table(_COLUMNS, rows, "no model is served or asked for")
            if forecasts:
                for line in _forecast_lines(found):
                    typer.echo(line)
        if not watch:
            return
        time.sleep(WATCH_S)
        if not as_json:
            typer.echo()


def _rows(model: str, said: dict[str, Any]) -> list[list[str]]:
    costs = {each["device"]: each["cost_hour"] for each in said["options"]}
    return [
        [
            printable(model),
            printable(device),
            str(each["ready"]),
            str(each["starting"]),
            str(each["wanted"]),
            f"{each['queued_gpu_s']:g}",
            "" if costs.get(device) is None else f"{costs[device]:g}",
            printable(" ".join(each["ends"])),
            printable(_forecast(each.get("forecast"))),
            printable(said["why"]) if number == 0 else "",
        ]
        for number, (device, each) in enumerate(sorted(said["classes"].items()))
    ]


def _forecast(said: dict[str, Any] | None) -> str:
    """As ``acting 12%``: the error; a gateway of before says nothing."""
    if said is None:
        return ""
    error = said.get("error")
    return str(said["state"]) if error is None else f"{said['state']} {error:.0%}"


def _forecast_lines(found: dict[str, Any]) -> Iterator[str]:
    for model, said in found.items():
        for device, each in sorted(said["classes"].items()):
            ahead = each.get("forecast")
            if ahead is None:
                continue
            line = f"{model} on {device}: {ahead['state']}: {ahead['why']}"
            if ahead["error"] is not None:
                line += f"; off by {ahead['error']:.1%} on days it had not seen"
                line += f" ({ahead['error_as_now']:.1%} if all stayed as it is)"
            if ahead["upper_gpu_s"] is not None:
                line += f"; {ahead['upper_gpu_s']:g} device-seconds/s are foreseen at the most"
            if ahead["events"]:
                line += f"; events: {', '.join(ahead['events'])}"
            yield printable(line)
