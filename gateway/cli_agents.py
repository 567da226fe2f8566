"""``trunkline agents``: the agents that joined."""

import time
from typing import Annotated, Any

import typer

from gateway.cli_output import moment, note, print_json, print_table
from gateway.cli_state import JsonOption, StateOption, label_text, labels_of, opened
from gateway.store import AgentRecord, TokenState

agents = typer.Typer(help="The agents that joined.")


def register(app: typer.Typer) -> None:
    """Add ``agents`` to a command line."""
    app.add_typer(agents, name="agents")


@agents.callback(invoke_without_command=True)
def agents_default(context: typer.Context, state: StateOption, as_json: JsonOption = False) -> None:
    """The agents that joined. Without a command: list them."""
    if context.invoked_subcommand is None:
        list_agents(state, as_json)
        return
    for name, option in (("state", "--state"), ("as_json", "--json")):
        source = context.get_parameter_source(name)
        if source is not None and source.name == "COMMANDLINE":
            raise typer.BadParameter(f"put it after {context.invoked_subcommand!r}", param_hint=option)


@agents.command("list")
def list_agents(state: StateOption, as_json: JsonOption = False) -> None:
    """List the agents that joined, what they may serve and when they were last seen.

    Example: trunkline agents list --json
    """
    with opened(state) as store:
        records = store.agents.list()
    if as_json:
        print_json([_agent_facts(record) for record in records])
        return
    rows = [
        [
            record.name,
            "active" if record.revoked_s is None else "revoked",
            " ".join(record.models),
            label_text(record.labels),
            moment(record.joined_s),
            "never" if record.last_seen_s is None else moment(record.last_seen_s),
        ]
        for record in records
    ]
    print_table(["NAME", "STATE", "MODELS", "LABELS", "JOINED", "LAST SEEN"], rows, "no agents have joined")


@agents.command("revoke")
def revoke_agent(
    name: Annotated[str, typer.Argument(help="The agent's name.")],
    state: StateOption,
    reason: Annotated[str, typer.Option(help="Why: the agent is told, and the list keeps it.")] = "",
) -> None:
    """Revoke an agent: its tunnel ends at once, its key never comes back. Its name is free again.

    Example: trunkline agents revoke gpu-7 --reason 'host sold'
    """
    with opened(state) as store:
        record = store.agents.revoke(name, reason, time.time())
        token = store.tokens.get(record.token_id)
    note(f"Agent {record.name!r} is revoked.")
    if token is not None and token.state(time.time()) is TokenState.ACTIVE:
        left = token.uses_allowed - token.uses
        note(
            f"The join token it used still lets {left} in. If that host must stay out: "
            f"trunkline token revoke {token.id}"
        )


@agents.command("rename")
def rename_agent(
    name: Annotated[str, typer.Argument(help="The agent's name.")],
    new: Annotated[str, typer.Argument(help="What it is called from now on.")],
    state: StateOption,
) -> None:
    """Rename an agent. It stays connected and keeps its key; a running gateway tells it its name.

    Example: trunkline agents rename gpu-7 berlin-7
    """
    with opened(state) as store:
        record = store.agents.rename(name, new)
    note(f"Agent {name!r} is called {record.name!r} now.")


@agents.command("set")
def set_agent(
    name: Annotated[str, typer.Argument(help="The agent's name.")],
    state: StateOption,
    models: Annotated[
        list[str] | None,
        typer.Option(
            "--model",
            "--models",
            help="The models it may serve from now on, shell patterns. Repeatable, or separated by commas.",
            metavar="A[,B]",
        ),
    ] = None,
    label: Annotated[
        list[str] | None,
        typer.Option(help="The labels it has from now on, k=v. Repeatable.", metavar="K=V"),
    ] = None,
    no_labels: Annotated[bool, typer.Option("--no-labels", help="It has no labels from now on.")] = False,
) -> None:
    """Change what an agent may serve, or its labels. What is not named stays as it is.

    A running gateway takes it up at once; requests that run go on.

    Example: trunkline agents set gpu-7 --models 'llama-*,qwen-*' --label region=eu
    """
    if label and no_labels:
        raise typer.BadParameter("give either --label or --no-labels", param_hint="--no-labels")
    patterns = [pattern.strip() for each in models or [] for pattern in each.split(",")]
    if not patterns and not label and not no_labels:
        raise typer.BadParameter("nothing to set: give --models or --label")
    labels = {} if no_labels else labels_of(label) if label else None
    with opened(state) as store:
        record = store.agents.allow(name, patterns or None, labels)
    note(
        f"Agent {name!r} may serve {' '.join(record.models)}; labels: {label_text(record.labels) or 'none'}."
    )


def _agent_facts(record: AgentRecord) -> dict[str, Any]:
    return {
        "name": record.name,
        "state": "active" if record.revoked_s is None else "revoked",
        "models": list(record.models),
        "labels": dict(record.labels),
        "token": record.token_id,
        "joined_s": record.joined_s,
        "last_seen_s": record.last_seen_s,
        "certificate_expires_s": max(record.certificates.values(), default=None),
        "revoked_s": record.revoked_s,
        "revoked_reason": record.revoked_reason,
    }
