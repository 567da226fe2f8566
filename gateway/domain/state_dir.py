"""Where the durable state is kept unless somebody says otherwise."""

import os
from collections.abc import Mapping
from pathlib import Path

from shared.process.startup import home_directory

DATABASE_NAME = "gateway.db"
ADDRESS_NAME = "store.json"
"""Lies there instead where the database is on a server, and says which."""

OBJECTS_NAME = "objects"
"""The directory of what files and jobs are made of."""

PID_NAME = "gateway.pid"
"""Locked, and signed, by the one gateway that runs on the directory."""

SYSTEM_STATE = Path("/var/lib/trunkline")
_AGENTS = "agent"
"""What an agent that root runs keeps there."""


def default_state_dir(environment: Mapping[str, str], home: Path, is_root: bool) -> Path:
    """``/var/lib/trunkline`` for root where that exists, else ``$XDG_STATE_HOME`` or ``~/.local/state``.

    An agent on the same host does not make it exist: or a gateway would lose its keys when one is started.
    """
    if is_root and SYSTEM_STATE.is_dir() and [each.name for each in SYSTEM_STATE.iterdir()] != [_AGENTS]:
        return SYSTEM_STATE
    base = Path(environment.get("XDG_STATE_HOME", ""))
    return (base if base.is_absolute() else home / ".local" / "state") / "trunkline"


def own_state_dir() -> Path:
    """The default for this process."""
    is_root = hasattr(os, "geteuid") and os.geteuid() == 0
    return default_state_dir(os.environ, home_directory(), is_root)
