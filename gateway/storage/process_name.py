"""The name of the gateway process of a state directory whose store is on a server with others': made once and
kept in the directory, so that agents and rows know the process again when it is started anew."""

import contextlib
import os
import re
import secrets
import socket
from pathlib import Path

from gateway.storage.errors import StateCorrupt, StateUnwritable

PROCESS_NAME = "process.txt"

_PATTERN = "[a-z0-9][a-z0-9._-]{0,47}"
"""As agents know processes (PROTOCOL §4.10)."""


def keep_process_name(state_dir: Path) -> str:
    """The name, made where there is none. Raises StateUnwritable, StateCorrupt."""
    found = kept_process_name(state_dir)
    if found is not None:
        return found
    path = state_dir / PROCESS_NAME
    name = new_process_name(socket.gethostname())
    fresh = path.with_name(f".{PROCESS_NAME}.{name}")
    try:
        file = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with os.fdopen(file, "w") as opened:
            opened.write(f"{name}\n")
        with contextlib.suppress(FileExistsError):  # another worker was first
            os.link(fresh, path)
        fresh.unlink()
    except OSError as error:
        raise StateUnwritable.opening(path, error) from error
    return kept_process_name(state_dir) or name


def kept_process_name(state_dir: Path) -> str | None:
    """The name; None: no gateway has made one here. Raises StateUnwritable, StateCorrupt."""
    path = state_dir / PROCESS_NAME
    try:
        name = path.read_bytes()[:200].decode().strip()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except UnicodeDecodeError:
        name = ""
    except OSError as error:
        raise StateUnwritable.opening(path, error) from error
    if not re.fullmatch(_PATTERN, name):
        raise StateCorrupt(f"{path} holds no name of a process: remove it, and the gateway makes another")
    return name


def new_process_name(host: str) -> str:
    """One that no other process has, and that says which host it is on."""
    readable = re.sub("[^a-z0-9]+", "-", host.lower())[:32].strip("-")
    return f"{readable or 'gateway'}-{secrets.token_hex(4)}"
