"""``trunkline identity``: the gateway's own key, which agents trust."""

from typing import Annotated

import typer

from gateway.cli.access import GatewayAccess, on_a_gateway
from gateway.cli.options import JsonOption, duration_s
from gateway.tools.console import moment, note, print_json, print_table
from shared.process.command_line import command_group

identity = command_group("The gateway's own key, which agents trust.", example="trunkline identity show")


def register(app: typer.Typer) -> None:
    """Add ``identity`` to a command line."""
    app.add_typer(identity, name="identity")


@identity.command("show")
@on_a_gateway
def show_identity(gateway: GatewayAccess, as_json: JsonOption = False) -> None:
    """Show the id and the fingerprint of the gateway's key, and of the one before while it counts.

    The key itself is shown to nobody. Over HTTP it takes the role viewer.

    Example: trunkline identity show
    """
    facts = gateway.do("show_identity")["keys"]
    if as_json:
        print_json(facts)
        return
    rows = [
        [
            each["id"],
            each["state"],
            "" if each["until_s"] is None else moment(each["until_s"]),
            each["sha256"],
        ]
        for each in facts
    ]
    print_table(["ID", "STATE", "UNTIL", "SHA-256"], rows, "no key")


@identity.command("rotate")
@on_a_gateway
def rotate_identity(
    gateway: GatewayAccess,
    overlap: Annotated[
        str,
        typer.Option(
            help="How long the key there is counts beside the new one: agents hear of the new key while they "
            "are connected in that time. 0s after a theft: every agent must join again.",
            metavar="DURATION",
        ),
    ] = "30d",
) -> None:
    """Give the gateway a new key. A running gateway uses it at once and tells its agents.

    Join tokens and certificates made before are good until the overlap ends. An agent that is away for all of
    it must join again.

    This is done on the gateway's host only, on its state directory: the key never leaves it, and whoever has
    stolen an admin's key shall not be able to change what every agent trusts. With --url it is refused.

    Example: trunkline identity rotate --overlap 30d
    """
    current, *previous = gateway.do("rotate_identity", overlap_s=duration_s(overlap, "--overlap"))["keys"]
    if not previous:
        note(f"The gateway's key is {current['id']} from now on. Every agent must join again.")
    else:
        until = moment(previous[0]["until_s"])
        note(f"The gateway's key is {current['id']} from now on. The one before counts until {until}.")
