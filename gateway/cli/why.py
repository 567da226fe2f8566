"""``trunkline why``: what became of one request, and why, in words."""

from http import HTTPStatus
from typing import Annotated
from urllib.parse import quote

import typer

from gateway.cli.options import CaOption, JsonOption, KeyOption, UrlOption
from gateway.cli_support.asked_gateway import DEFAULT_URL, gateway_client
from gateway.cli_support.console import fail, note, print_json
from shared.process.excerpt import printable


def register(app: typer.Typer) -> None:
    """Add the command to a command line."""
    app.command("why")(why)


def why(
    request_id: Annotated[
        str, typer.Argument(metavar="REQUEST_ID", help="What the answer's header x-request-id says.")
    ],
    url: UrlOption = DEFAULT_URL,
    key: KeyOption = None,
    ca_file: CaOption = None,
    as_json: JsonOption = False,
) -> None:
    """Say why a request waited, why it went where it went, and what it cost. Takes the role viewer.

    Example: trunkline why req_5a41c0de9b0f4e21a7c1d3f2
    """
    from gateway.cli_support.gateway_client import GatewayFailed

    with gateway_client(url, key, ca_file) as client:
        try:
            found = client.get(f"requests/{quote(request_id, safe='', errors='surrogateescape')}", "words")
        except GatewayFailed as error:
            if error.status == HTTPStatus.NOT_FOUND:
                fail(str(error))
            raise
    if as_json:
        print_json(found)
        return
    for line in found["words"]:
        typer.echo(printable(str(line)))
    if missing := found.get("missing"):
        note(f"These processes do not answer: {', '.join(map(printable, missing))}")
