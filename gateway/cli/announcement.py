"""What a gateway says when it serves: where it listens, what to do next, and where the first key is."""

import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from gateway.cli_support.console import note
from gateway.domain.scopes import AdminRole
from gateway.domain.urls import is_own
from gateway.runtime.config import Settings
from shared.process.startup import program_version

if TYPE_CHECKING:
    from gateway.storage import Store

FIRST_KEY = "first"
FIRST_KEY_FILE = "first-admin-key"


def announce(url: str, store: "Store", settings: Settings, workers: int = 1) -> None:
    """Where it listens, where its state is, and what to do next."""
    state = store.state_dir.absolute()
    seen_as = url if is_own(settings.address[0]) else _public_url(url)
    note(f"trunkline gateway {program_version()}")
    note(f"  listens     {url}")
    note(f"  for clients base URL {seen_as}/v1")
    if workers > 1:
        note(f"  workers     {workers}")
    note(f"  state       {state}")
    if store.address is not None:
        note(f"  store       {store.address}")
    note(f"  add a GPU   trunkline token create --state {state}")
    note(f"              then on its host: trunkline agent --gateway {seen_as} --join TOKEN")
    for line in _first_key_lines(store, state):
        note(line)


def _first_key_lines(store: "Store", state: Path) -> list[str]:
    """A store that cannot be asked just now keeps no gateway from serving."""
    from gateway.storage.errors import StateError

    try:
        key = first_key(store)
    except StateError as error:
        return [f"  API key     not known whether there is one: {error}"]
    return [] if key is None else _key_lines(key, state)


def _key_lines(key: str, state: Path) -> list[str]:
    """How the first key reaches the person who starts the gateway: on a terminal it is shown; anything else
    keeps what it is told (a journal, a file), so there only the name of a file is."""
    others = "              for everybody else: trunkline key create --name NAME"
    if sys.stderr.isatty():
        shown = f"              named {FIRST_KEY!r}, an admin's, shown this once;"
        return [f"  API key     {key}", shown, others]
    path = state / FIRST_KEY_FILE
    try:
        write_secret(path, key)
    except OSError as error:
        remedy = f"trunkline key create --role admin --name NAME --state {state}"
        return [f"  API key     cannot be written to {path} ({error.strerror}); make one with: {remedy}"]
    return [f"  API key     {path} has the first one, an admin's: take it from there and remove the file"]


def write_secret(path: Path, text: str) -> None:
    """A line in a new file for its owner only, in place of one that lies there. Raises OSError."""
    fresh = path.with_name(f".{path.name}.new")
    fresh.unlink(missing_ok=True)
    file = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with os.fdopen(file, "w") as opened:
        opened.write(f"{text}\n")
        opened.flush()
        os.fsync(opened.fileno())
    fresh.replace(path)


def _public_url(url: str) -> str:
    scheme, _, rest = url.partition("://")
    return f"https://YOUR-HOST:{rest.rpartition(':')[2]}" if scheme == "https" else "https://YOUR-HOST"


def first_key(store: "Store") -> str | None:
    """A key to begin with, if this state never had any."""
    from gateway.storage import DEFAULT_TENANT
    from gateway.storage.errors import NameTaken

    if not store.keys.is_empty():
        return None
    try:
        return store.keys.create(FIRST_KEY, DEFAULT_TENANT, time.time(), role=AdminRole.ADMIN)
    except NameTaken:
        return None
