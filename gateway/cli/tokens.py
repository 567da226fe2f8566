"""``trunkline token``: join tokens, which let GPU hosts become agents."""

from typing import Annotated

import typer

from gateway.cli.access import GatewayAccess, on_a_gateway
from gateway.cli.options import JsonOption, duration_s, label_text, labels_of, listed
from gateway.tools.console import fail, moment, note, print_json, print_table
from shared.process.command_line import command_group

ID_CHARS = 4
"""Of an id that name a token, at least."""
MOST_USES = 100_000
"""As :data:`gateway.storage.rules.USES`, which takes the database to import."""

tokens = command_group(
    "Join tokens: what lets a GPU host become an agent.",
    example="trunkline token create --uses 8 --expires 7d",
)


def register(app: typer.Typer) -> None:
    """Add ``token`` to a command line."""
    app.add_typer(tokens, name="token")


@tokens.command("create")
@on_a_gateway
def create_token(
    gateway: GatewayAccess,
    expires: Annotated[
        str, typer.Option(help="How long it can be used: 30m, 24h, 7d …", metavar="DURATION")
    ] = "24h",
    uses: Annotated[int, typer.Option(help="How many agents may join with it.", min=1, max=MOST_USES)] = 1,
    models: Annotated[
        list[str] | None,
        typer.Option(
            "--models",
            "--model",
            help="Models its agents may serve, shell patterns. Repeatable. [default: every model]",
            metavar="A,B",
        ),
    ] = None,
    label: Annotated[
        list[str] | None, typer.Option(help="A label for its agents, k=v. Repeatable.", metavar="K=V")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Make a join token and print it as the last line.

    Example: trunkline token create --uses 8 --expires 7d --models 'llama-*' --label region=eu
    """
    made = gateway.do(
        "create_token",
        life_s=duration_s(expires),
        uses=uses,
        models=listed(models) or ["*"],
        labels=labels_of(label or []),
    )
    if as_json:
        print_json({"token": made["token"], **made["record"]})
        return
    agents_text = "one agent" if uses == 1 else f"{uses} agents"
    note(
        f"Join token {made['id']}, for {agents_text}, until {moment(made['expires_s'])}. On the GPU host run:"
    )
    note("  trunkline agent --gateway URL --join TOKEN")
    print(made["token"])  # noqa: T201


@tokens.command("list")
@on_a_gateway
def list_tokens(gateway: GatewayAccess, as_json: JsonOption = False) -> None:
    """List join tokens. Their secrets are not kept, so they cannot be shown.

    Example: trunkline token list --json
    """
    found = gateway.do("list_tokens")["tokens"]
    if as_json:
        print_json(found)
        return
    rows = [
        [
            facts["id"],
            facts["state"],
            f"{facts['uses']}/{facts['uses_allowed']}",
            moment(facts["expires_s"]),
            " ".join(facts["models"]),
            label_text(facts["labels"]),
        ]
        for facts in found
    ]
    print_table(["ID", "STATE", "USES", "EXPIRES", "MODELS", "LABELS"], rows, "no join tokens")


@tokens.command("revoke")
@on_a_gateway
def revoke_token(
    gateway: GatewayAccess,
    token: Annotated[str, typer.Argument(help="Its id, the beginning of its id, or the token itself.")],
) -> None:
    """Revoke a join token. Agents that joined with it stay.

    Example: trunkline token revoke 3fa9
    """
    found = gateway.do("revoke_token", _id_of(token))
    note(f"Join token {found['id']} is revoked. {_used(found['uses'])}")


def _id_of(text: str) -> str:
    """The id in a token, whose secret goes no further."""
    if not text.startswith("tlj_"):
        if len(text) < ID_CHARS:
            raise typer.BadParameter(f"{text!r} is too short: give at least {ID_CHARS} characters of the id")
        return text
    from shared.identity import JoinToken
    from shared.protocol.errors import JoinTokenInvalid

    try:
        return JoinToken.decode(text).id_text
    except JoinTokenInvalid as error:
        fail(str(error))


def _used(uses: int) -> str:
    if uses == 0:
        return "No agent had joined with it."
    joined = "1 agent" if uses == 1 else f"{uses} agents"
    return f"{joined} had joined with it and can still connect; see: trunkline agents list"
