"""The operations of :mod:`gateway.api.admin.resources` as pages of the admin API: what the commands
do, over HTTP.
"""

import asyncio
import re
import time
from collections.abc import Callable, Mapping

from pydantic import BaseModel

from gateway.api.admin.resources.child import run_in_child
from gateway.api.admin.resources.resource import AdminRequest, Json, Operation
from gateway.api.admin.resources.table import OPERATIONS, run_operation
from gateway.api.admin.routes import AdminAction, AdminCall, AdminMethod, AdminPage, read_body
from gateway.domain.errors import Overloaded
from gateway.fleet.availability import ModelRecord
from gateway.pipeline.pipeline import KeyAuthenticator
from gateway.storage import Store

_NAMES = re.compile(r"{(\w+)(?::path)?}")
_METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE")


class StoreAdmin:
    """The pages of every operation. The store waits for the disk, so operations run in a thread."""

    def __init__(
        self,
        store: Store,
        models: Callable[[], Mapping[str, ModelRecord]],
        wall: Callable[[], float] = time.time,
    ) -> None:
        """``models``: those that are served now, by name. ``wall`` gives seconds since 1970."""
        self._store = store
        self._models = models
        self._wall = wall
        self.running: set[str] = set()
        """Operations that are being done in a process of their own."""

    def pages(self, keys: KeyAuthenticator) -> dict[str, AdminPage]:
        """The pages by path, for who presents one of ``keys``; a path that ends with a name that may hold
        slashes comes after all others, which a router then tries first."""
        operations = [each for each in OPERATIONS.values() if not each.only_here]
        methods: dict[str, dict[str, AdminMethod]] = {each.path: {} for each in operations}
        for each in sorted(operations, key=lambda each: _METHODS.index(each.method)):
            methods[each.path][each.method] = AdminMethod(each.role, self._action(each))
        paths = sorted(methods, key=lambda path: path.endswith(":path}"))
        return {path: AdminPage(keys, methods[path]) for path in paths}

    def _action(self, operation: Operation) -> AdminAction:
        names = _NAMES.findall(operation.path)

        async def act(call: AdminCall) -> Json:
            model = (await asyncio.to_thread(_models)).get(operation.name)
            given = {} if model is None else call.query() if operation.query else await call.body()
            body = {} if model is None else read_body(model, given).model_dump(exclude_unset=True)
            if operation.own_process:
                await call.body()  # none is wanted, and a client that leaves is seen behind it
                async with call.while_here():
                    return await self._run_in_child(operation, body)
            of = tuple(call.names[name] for name in names)
            request = AdminRequest(self._wall(), self._serves, of, body)
            return await asyncio.to_thread(run_operation, self._store, operation.name, request)

        act.__name__ = operation.name
        return act

    async def _run_in_child(self, operation: Operation, body: Json) -> Json:
        """In a process of its own, which takes no time from the event loop, and ends with the request."""
        if operation.name in self.running:
            words = operation.name.replace("_", " ").capitalize()
            raise Overloaded(f"{words} is being done already: ask again when that is over.")
        self.running.add(operation.name)
        try:
            return await run_in_child(self._store.state_dir, operation.name, body)
        finally:
            self.running.discard(operation.name)

    def _serves(self, model: str, version: str | None) -> bool:
        record = self._models().get(model)
        if record is None:
            return False
        able = [*record.serving.values(), *record.loadable.values()]
        return any(version is None or each.version == version for each in able)


def _models() -> Mapping[str, type[BaseModel]]:
    """What bodies and queries are taken, by operation. Imported at the first request, in a thread: neither a
    start nor the event loop waits the 15 ms that making these classes takes."""
    from gateway.api.admin.bodies import MODELS

    return MODELS
