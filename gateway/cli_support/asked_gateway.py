"""The gateway that a command asks: the options that name it, and a client of it."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gateway.cli_support.console import fail

if TYPE_CHECKING:
    from gateway.cli_support.gateway_client import GatewayClient

DEFAULT_URL = "http://127.0.0.1:8700"

UrlOption = Annotated[
    str,
    typer.Option("--url", "--gateway", envvar="TRUNKLINE_URL", metavar="URL", help="The gateway's address."),
]
KeyOption = Annotated[
    str | None,
    typer.Option(
        "--key",
        envvar="TRUNKLINE_KEY",
        metavar="KEY",
        help="A key with a role there. In the variable it is not seen in the list of processes.",
        show_default=False,
    ),
]
CaOption = Annotated[
    Path | None,
    typer.Option(
        "--ca-file",
        envvar="TRUNKLINE_CA_FILE",
        metavar="FILE",
        help="Certificates to trust for the gateway's TLS.",
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]


@contextlib.contextmanager
def gateway_client(
    url: str, key: str | None, ca_file: Path | None, *, role: bool = True
) -> Iterator["GatewayClient"]:
    """A client of the gateway at ``url``; ``role``: its key needs one. Failures end the command with code 1,
    refused values with 2."""
    from gateway.cli_support.gateway_client import GatewayClient, GatewayFailed

    if not key:
        wanted, option = ("a key with a role", " --role viewer") if role else ("a key", "")
        raise typer.BadParameter(
            f"a running gateway wants {wanted}: give it here or in TRUNKLINE_KEY. On the gateway's "
            f"host `trunkline key create --name NAME{option}` makes one",
            param_hint="--key",
        )
    try:
        client = GatewayClient(url, key, ca_file)
    except GatewayFailed as error:
        raise typer.BadParameter(str(error)) from error
    try:
        yield client
    except GatewayFailed as error:
        said = str(error).removesuffix(".")
        if error.status == 400:
            raise typer.BadParameter(said) from error
        fail(said)
