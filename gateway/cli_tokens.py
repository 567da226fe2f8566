"""``trunkline token``: join tokens, which let GPU hosts become agents."""

import time
from typing import Annotated, Any

import typer

from gateway.cli_output import moment, note, print_json, print_table
from gateway.cli_state import JsonOption, StateOption, duration_s, label_text, labels_of, opened
from gateway.store import TokenRecord

tokens = typer.Typer(no_args_is_help=True, help="Join tokens: what lets a GPU host become an agent.")


def register(app: typer.Typer) -> None:
    """Add ``token`` to a command line."""
    app.add_typer(tokens, name="token")


@tokens.command("create")
def create_token(
    state: StateOption,
    expires: Annotated[
        str, typer.Option(help="How long it can be used: 30m, 24h, 7d …", metavar="DURATION")
    ] = "24h",
    uses: Annotated[int, typer.Option(help="How many agents may join with it.")] = 1,
    model: Annotated[
        list[str] | None,
        typer.Option(help="Models its agents may serve, a shell pattern. Repeatable. [default: every model]"),
    ] = None,
    label: Annotated[
        list[str] | None, typer.Option(help="A label for its agents, k=v. Repeatable.", metavar="K=V")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Make a join token and print it as the last line.

    Example: trunkline token create --uses 8 --expires 7d --model 'llama-*' --label region=eu
    """
    models, labels, life_s, now_s = model or ["*"], labels_of(label or []), duration_s(expires), time.time()
    with opened(state, create=True) as store:
        token, text = store.tokens.create(life_s, uses, models, labels, now_s)
        record = store.tokens.get(token.id_text)
        assert record is not None
    if as_json:
        print_json({"token": text, **_token_facts(record, now_s)})
        return
    agents_text = "one agent" if uses == 1 else f"{uses} agents"
    note(f"Join token {record.id}, for {agents_text}, until {moment(record.expires_s)}. On the GPU host run:")
    note("  trunkline agent --gateway URL --join TOKEN")
    print(text)  # noqa: T201


@tokens.command("list")
def list_tokens(state: StateOption, as_json: JsonOption = False) -> None:
    """List join tokens. Their secrets are not kept, so they cannot be shown.

    Example: trunkline token list --json
    """
    now_s = time.time()
    with opened(state) as store:
        records = store.tokens.list()
    if as_json:
        print_json([_token_facts(record, now_s) for record in records])
        return
    rows = [
        [
            record.id,
            record.state(now_s).value,
            f"{record.uses}/{record.uses_allowed}",
            moment(record.expires_s),
            " ".join(record.models),
            label_text(record.labels),
        ]
        for record in records
    ]
    print_table(["ID", "STATE", "USES", "EXPIRES", "MODELS", "LABELS"], rows, "no join tokens")


@tokens.command("revoke")
def revoke_token(
    token: Annotated[str, typer.Argument(help="Its id, the beginning of its id, or the token itself.")],
    state: StateOption,
) -> None:
    """Revoke a join token. Agents that joined with it stay.

    Example: trunkline token revoke 3fa9
    """
    with opened(state) as store:
        record = store.tokens.revoke(token, time.time())
    note(f"Join token {record.id} is revoked. {_used(record)}")


def _used(record: TokenRecord) -> str:
    if record.uses == 0:
        return "No agent had joined with it."
    joined = "1 agent" if record.uses == 1 else f"{record.uses} agents"
    return f"{joined} had joined with it and can still connect; see: trunkline agents list"


def _token_facts(record: TokenRecord, wall_s: float) -> dict[str, Any]:
    return {
        "id": record.id,
        "state": record.state(wall_s).value,
        "uses": record.uses,
        "uses_allowed": record.uses_allowed,
        "created_s": record.created_s,
        "expires_s": record.expires_s,
        "revoked_s": record.revoked_s,
        "models": list(record.models),
        "labels": dict(record.labels),
    }
