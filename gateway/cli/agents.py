"""``trunkline agents``: the agents that joined."""

from typing import Annotated

import typer

from gateway.cli.access import GatewayAccess, chosen, on_a_gateway
from gateway.cli.options import (
    CaOption,
    JsonOption,
    KeyOption,
    OptionalUrlOption,
    StateOption,
    label_text,
    labels_of,
    listed,
)
from gateway.tools.console import moment, note, print_json, print_table
from shared.process.command_line import CommandApp

agents = CommandApp()


def register(app: typer.Typer) -> None:
    """Add ``agents`` to a command line."""
    app.add_typer(agents, name="agents")


@agents.callback(invoke_without_command=True)
def agents_default(
    context: typer.Context,
    as_json: JsonOption = False,
    state: StateOption = None,
    url: OptionalUrlOption = None,
    key: KeyOption = None,
    ca_file: CaOption = None,
) -> None:
    """The agents that joined. Without a command: list them.

    Example: trunkline agents --json
    """
    if context.invoked_subcommand is None:
        _show(chosen(context, state, url, key, ca_file), as_json)
        return
    for name, option in _OPTIONS.items():
        source = context.get_parameter_source(name)
        if source is not None and source.name == "COMMANDLINE":
            raise typer.BadParameter(f"put it after {context.invoked_subcommand!r}", param_hint=option)


_OPTIONS = {"state": "--state", "url": "--url", "key": "--key", "ca_file": "--ca-file", "as_json": "--json"}


@agents.command("list")
@on_a_gateway
def list_agents(gateway: GatewayAccess, as_json: JsonOption = False) -> None:
    """List the agents that joined, what they may serve and when they were last seen.

    Example: trunkline agents list --json
    """
    _show(gateway, as_json)


def _show(gateway: GatewayAccess, as_json: bool) -> None:
    found = gateway.do("list_enrolments")["agents"]
    if as_json:
        print_json(found)
        return
    rows = [
        [
            facts["name"],
            facts["state"],
            " ".join(facts["models"]),
            label_text(facts["labels"]),
            moment(facts["joined_s"]),
            "never" if facts["last_seen_s"] is None else moment(facts["last_seen_s"]),
        ]
        for facts in found
    ]
    print_table(["NAME", "STATE", "MODELS", "LABELS", "JOINED", "LAST SEEN"], rows, "no agents have joined")


@agents.command("revoke")
@on_a_gateway
def revoke_agent(
    gateway: GatewayAccess,
    name: Annotated[str, typer.Argument(help="The agent's name.")],
    reason: Annotated[str, typer.Option(help="Why: the agent is told, and the list keeps it.")] = "",
) -> None:
    """Revoke an agent: its tunnel ends at once, its key never comes back. Its name is free again.

    Example: trunkline agents revoke gpu-7 --reason 'host sold'
    """
    found = gateway.do("revoke_agent", name, reason=reason)
    note(f"Agent {found['agent']!r} is revoked.")
    if found["token_uses_left"]:
        note(
            f"The join token it used still lets {found['token_uses_left']} in. If that host must stay out: "
            f"trunkline token revoke {found['token']}"
        )


@agents.command("rename")
@on_a_gateway
def rename_agent(
    gateway: GatewayAccess,
    name: Annotated[str, typer.Argument(help="The agent's name.")],
    new: Annotated[str, typer.Argument(help="What it is called from now on.")],
) -> None:
    """Rename an agent. It stays connected and keeps its key; a running gateway tells it its name.

    Example: trunkline agents rename gpu-7 berlin-7
    """
    found = gateway.do("set_agent", name, name=new)
    note(f"Agent {name!r} is called {found['name']!r} now.")


@agents.command("set")
@on_a_gateway
def set_agent(
    gateway: GatewayAccess,
    name: Annotated[str, typer.Argument(help="The agent's name.")],
    models: Annotated[
        list[str] | None,
        typer.Option(
            "--models",
            "--model",
            help="The models it may serve from now on, shell patterns. Repeatable, or separated by commas.",
            metavar="A,B",
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
    patterns = listed(models)
    if not patterns and not label and not no_labels:
        raise typer.BadParameter("nothing to set: give --models or --label")
    labels = {} if no_labels else labels_of(label) if label else None
    facts = gateway.do("set_agent", name, models=patterns, labels=labels)
    told = label_text(facts["labels"]) or "none"
    note(f"Agent {name!r} may serve {' '.join(facts['models'])}; labels: {told}.")
