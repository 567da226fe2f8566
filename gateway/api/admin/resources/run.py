"""Does operations on a store."""

from collections.abc import Callable
from importlib import import_module

from gateway.api.admin.resources.request import AdminRequest, Json
from gateway.api.admin.resources.table import OPERATIONS
from gateway.storage import Store

Run = Callable[[Store, AdminRequest], Json]


class _Functions(dict[str, Run]):
    """Each is imported when it is first used: a command uses one."""

    def __missing__(self, name: str) -> Run:
        found: Run = getattr(import_module(f"gateway.api.admin.resources.{OPERATIONS[name].room}"), name)
        self[name] = found
        return found


FUNCTIONS: dict[str, Run] = _Functions()
"""What does each operation: a function of its name. Waits for the disk; raises RecordError and StateError."""
