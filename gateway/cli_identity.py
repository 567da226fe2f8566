"""``trunkline identity``: the gateway's own key, which agents trust."""

import time
from typing import Annotated, Any

import typer

from gateway.cli_options import JsonOption, StateOption, duration_s
from gateway.cli_output import moment, note, print_json, print_table
from gateway.cli_state import opened
from shared.command_line import command_group
from shared.identity import GatewayIdentity, GatewayKeys

identity = command_group("The gateway's own key, which agents trust.", example="trunkline identity show")


def register(app: typer.Typer) -> None:
    """Add ``identity`` to a command line."""
    app.add_typer(identity, name="identity")


@identity.command("show")
def show_identity(as_json: JsonOption = False, state: StateOption = None) -> None:
    """Show the id and the fingerprint of the gateway's key, and of the one before while it counts.

    Example: trunkline identity show
    """
    now_s = time.time()
    with opened(state) as store:
        facts = _facts(store.identity.keys, now_s)
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
def rotate_identity(
    overlap: Annotated[
        str,
        typer.Option(
            help="How long the key there is counts beside the new one: agents hear of the new key while they "
            "are connected in that time. 0s after a theft: every agent must join again.",
            metavar="DURATION",
        ),
    ] = "30d",
    state: StateOption = None,
) -> None:
    """Give the gateway a new key. A running gateway uses it at once and tells its agents.

    Join tokens and certificates made before are good until the overlap ends. An agent that is away for all of
    it must join again.

    Example: trunkline identity rotate --overlap 30d
    """
    overlap_s, now_s = duration_s(overlap, "--overlap"), time.time()
    with opened(state) as store:
        keys = store.identity.rotate(overlap_s, now_s)
    if keys.previous_at(now_s) is None:
        note(f"The gateway's key is {keys.current.id} from now on. Every agent must join again.")
    else:
        until = moment(keys.until_s)
        note(f"The gateway's key is {keys.current.id} from now on. The one before counts until {until}.")


def _facts(keys: GatewayKeys, wall_s: float) -> list[dict[str, Any]]:
    facts = [_key_facts(keys.current, "current", None)]
    if (previous := keys.previous_at(wall_s)) is not None:
        facts.append(_key_facts(previous, "previous", keys.until_s))
    return facts


def _key_facts(key: GatewayIdentity, state: str, until_s: float | None) -> dict[str, Any]:
    return {"id": key.id, "state": state, "until_s": until_s, "sha256": key.fingerprint.hex()}
