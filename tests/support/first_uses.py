"""What a process makes at its first use of it and keeps: made in a fork server, forks have it already.

Regular expressions of paths, the statements that make a database, what reads a command line and the messages
of a handshake are the same in every gateway and agent. Making them takes a third of the start of a fork.
"""

import asyncio
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import typer.main


def of_gateway() -> None:
    """Make one with default settings and a state of its own, and let go of it."""
    from gateway.app.app import Gateway
    from gateway.cli.gateway import app
    from gateway.runtime.config import Settings
    from gateway.storage import Store

    async def make(store: Store) -> None:
        Gateway(Settings(), store)

    with TemporaryDirectory() as directory, Store.open(Path(directory) / "state") as store:
        asyncio.run(make(store))
    _of_command_line(app)
    _of_handshake()


def of_agent() -> None:
    """What reads its command line and the messages of its handshake."""
    from agent.cli import app

    _of_command_line(app)
    _of_handshake()


def _of_command_line(app: typer.Typer) -> None:
    """Typer makes a command of an application whenever that is called, and of its options what reads them."""
    typer.main.get_command = cache(typer.main.get_command)
    for option in typer.main.get_command(app).params:
        if hasattr(option, "get_runtime_param"):
            option.get_runtime_param()


def _of_handshake() -> None:
    from shared.handshake import messages
    from shared.protocol.members import adapter_of

    for kind in (messages.Challenge, messages.HelloClaims, messages.WelcomeTerms):
        adapter_of(kind)
