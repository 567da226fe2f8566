"""Options that several commands have, under one name each, and what is said of those that cannot be read."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from gateway.cli_support.asked_gateway import CaOption as CaOption
from gateway.cli_support.asked_gateway import JsonOption as JsonOption
from gateway.cli_support.asked_gateway import KeyOption as KeyOption
from gateway.cli_support.asked_gateway import UrlOption as UrlOption
from gateway.domain.store_address import StoreAddress

StateOption = Annotated[
    Path | None,
    typer.Option(
        "--state",
        envvar="TRUNKLINE_STATE",
        metavar="DIRECTORY",
        show_default="$XDG_STATE_HOME/trunkline or ~/.local/state/trunkline; for root /var/lib/trunkline",
        help="The gateway's state directory, for work on it on this machine.",
    ),
]
StoreOption = Annotated[
    str | None,
    typer.Option(
        "--store",
        envvar="TRUNKLINE_STORE",
        metavar="URL",
        help="The PostgreSQL server with the state: postgresql://USER@HOST/DATABASE. Others on this machine "
        "see the command: a password is for PGPASSWORD or the password file.",
        show_default="files in the state directory, or what the gateway there uses",
    ),
]
ClusterKeyOption = Annotated[
    Path | None,
    typer.Option(
        "--cluster-key",
        envvar="TRUNKLINE_CLUSTER_KEY",
        metavar="FILE",
        help="Wraps the gateway's own key in the store; the same file for all gateways.",
        show_default="cluster.key in the state directory",
    ),
]
StorePasswordOption = Annotated[
    Path | None,
    typer.Option(
        "--store-password-file",
        envvar="TRUNKLINE_STORE_PASSWORD_FILE",
        metavar="FILE",
        help="Holds the password of the store's user.",
        show_default=False,
    ),
]
OptionalUrlOption = Annotated[
    str | None,
    typer.Option(
        "--url",
        "--gateway",
        envvar="TRUNKLINE_URL",
        metavar="URL",
        help="The address of a running gateway, to ask that instead.",
    ),
]


def store_address(
    store: str | None, cluster_key: Path | None, password_file: Path | None
) -> StoreAddress | None:
    """The server that the options name; None: none. Raises typer.BadParameter."""
    if store is None:
        return None
    with wrong_usage("--store"):
        return StoreAddress(store, cluster_key, password_file)


@contextlib.contextmanager
def wrong_usage(hint: str | None = None) -> Iterator[None]:
    """Raise a ValueError from inside as typer.BadParameter; ``hint`` names the option."""
    try:
        yield
    except ValueError as error:
        named = getattr(error, "hint", None) or hint
        raise typer.BadParameter(str(error), param_hint=named) from None
