"""The gateway's part of the command line."""

import typer

from gateway import (
    bench,
    cli_agents,
    cli_alias,
    cli_audit,
    cli_gateway,
    cli_identity,
    cli_keys,
    cli_live,
    cli_tenant,
    cli_tokens,
    cli_usage,
    quickstart,
    simulate,
)


def commands(app: typer.Typer) -> None:
    """Add every command of this package (entry point ``trunkline.commands``)."""
    cli_gateway.register(app)
    cli_tokens.register(app)
    cli_keys.register(app)
    cli_tenant.register(app)
    cli_agents.register(app)
    cli_identity.register(app)
    cli_alias.register(app)
    cli_usage.register(app)
    cli_live.register(app)
    cli_audit.register(app)
    quickstart.register(app)
    bench.register(app)
    simulate.register(app)
