"""The operations of :mod:`gateway.api.admin.resources` as pages of the admin API: what the commands
do, over HTTP.
"""

import asyncio
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from pydantic import BaseModel

from gateway.api.admin.resources.child import run_in_child
from gateway.api.admin.resources.resource import AdminRequest, Json, Operation
from gateway.api.admin.resources.table import OPERATIONS, run_operation
from gateway.api.admin.routes import AdminAction, AdminCall, AdminMethod, read_body, read_query, validated
from gateway.domain.errors import Overloaded
from gateway.fleet.availability import ModelRecord
from gateway.storage import Store

_NAMES = re.compile(r"{(\w+)(?::path)?}")
_METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE")


@dataclass(frozen=True)
class StoreAdmin:
    """The pages of every operation. The store waits for the disk, so operations run in a thread."""

    store: Store
    models: Callable[[], Mapping[str, ModelRecord]]
    """Those that are served now, by name."""
    wall: Callable[[], float] = time.time
    """Gives seconds since 1970."""
    running: set[str] = field(default_factory=set)
    """Operations that are being done in a process of their own."""

    def methods(self) -> list[AdminMethod]:
        """One for each operation, in the order of their paths in the table."""
        operations = [each for each in OPERATIONS.values() if not each.only_here]
        paths = [each.path for each in operations]
        operations.sort(key=lambda each: (paths.index(each.path), _METHODS.index(each.method)))
        return [AdminMethod(each.method, each.path, each.role, self._action(each)) for each in operations]

    def _action(self, operation: Operation) -> AdminAction:
        names = _NAMES.findall(operation.path)

        async def action(call: AdminCall) -> Json:
            model, exchange, body = (await asyncio.to_thread(_models)).get(operation.name), call.exchange, {}
            if model is not None:
                given = read_query(exchange) if operation.query else await read_body(exchange)
                body = validated(model, given)
            if operation.own_process:
                await read_body(exchange)  # none is wanted, and a client that leaves is seen behind it
                async with exchange.while_here():
                    return await self._run_in_child(operation, body)
            of = tuple(call.names[name] for name in names)
            request = AdminRequest(self.wall(), self._serves, of, body)
            return await asyncio.to_thread(run_operation, self.store, operation.name, request)

        action.__name__ = operation.name
        return action

    async def _run_in_child(self, operation: Operation, body: Json) -> Json:
        """In a process of its own, which takes no time from the event loop, and ends with the request."""
        if operation.name in self.running:
            words = operation.name.replace("_", " ").capitalize()
            raise Overloaded(f"{words} is being done already: ask again when that is over.")
        self.running.add(operation.name)
        try:
            return await run_in_child(self.store.state_dir, operation.name, body, self.store.address)
        finally:
            self.running.discard(operation.name)

    def _serves(self, model: str, version: str | None) -> bool:
        record = self.models().get(model)
        if record is None:
            return False
        able = [*record.serving.values(), *record.loadable.values()]
        return any(version is None or each.version == version for each in able)


def _models() -> Mapping[str, type[BaseModel]]:
    """What bodies and queries are taken, by operation. Imported at the first request, in a thread: neither a
    start nor the event loop waits the 15 ms that making these classes takes."""
    from gateway.api.admin.bodies import MODELS

    return MODELS
