"""Does operations on a store."""

from collections.abc import Callable

from gateway.admin import agents, aliases, keys, tenants
from gateway.admin.request import Json, Request
from gateway.admin.table import OPERATIONS
from gateway.store import Store

Run = Callable[[Store, Request], Json]

_ROOMS = (keys, agents, aliases, tenants)


def _function(name: str) -> Run:
    found: Run = next(getattr(room, name) for room in _ROOMS if hasattr(room, name))
    return found


FUNCTIONS: dict[str, Run] = {name: _function(name) for name in OPERATIONS}
"""What does each operation: a function of its name. Waits for the disk; raises RecordError and StateError."""
