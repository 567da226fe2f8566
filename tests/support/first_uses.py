"""What a process makes at its first use of it and keeps: made in a fork server, forks have it already.

Regular expressions of paths, the statements that make a database, what reads a command line and the messages
of a handshake are the same in every gateway and agent. Making them takes a third of the start of a fork.
"""

import asyncio
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import typer.main

if TYPE_CHECKING:
    from gateway.storage import Store


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
        _of_store(store)
        _of_jobs(store)
    _of_command_line(app)
    _of_handshake()


def of_commands() -> None:
    """The statements of commands that work on a store."""
    from gateway.storage import Store

    with TemporaryDirectory() as directory, Store.open(Path(directory) / "state") as store:
        _of_store(store)


def of_agent() -> None:
    """What reads its command line and the messages of its handshake."""
    from agent.cli import app

    _of_command_line(app)
    _of_handshake()


def _of_store(store: "Store") -> None:
    """The statements that most gateways and commands execute: they are compiled once for a process."""
    key = store.keys.create("first", "first", 1.0)
    store.keys.list()
    store.keys.touch({key: 1.0})
    store.tokens.create(3600.0, 1, ("*",), {}, 1.0)
    store.tokens.list()
    store.agents.list()
    store.agents.touch(["first"], 1.0)
    store.models.note({"first": 1.0}, ["first"], 1.0, 10)
    store.models.list(10)
    store.aliases.list()
    store.audit_heads.list()
    store.acts.forget([each.id for each in store.acts.pending(10)])


def _of_jobs(store: "Store") -> None:
    """Those that a gateway executes again and again to see to files and jobs, of which there are none."""
    store.uploads.ended(1.0, 10)
    store.uploads.forget(["first"], 1.0)
    store.files.removable(1.0, 10)
    store.jobs.remove_kept(1.0, 10)
    store.job_claims.end_leases_of("first", 1)
    store.job_claims.waiting(1.0)
    store.job_claims.sweep(1.0, 2.0, 3.0, 1)
    store.batches.end_leases_of("first")
    store.batches.any_open()
    store.batches.claim("first", 1.0, 1)
    store.webhooks.forget_ended(1.0, 10)
    store.scaling_history.forecasts(1.0)


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
