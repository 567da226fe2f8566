"""The operations of :mod:`gateway.api.admin.resources` as pages of the admin API: what the commands
do, over HTTP.
"""

import asyncio
import re
import time
from collections.abc import Callable, Mapping

from pydantic import BaseModel
from starlette.routing import Route

from gateway.api.admin.resources.apart import do_apart
from gateway.api.admin.resources.request import AdminRequest
from gateway.api.admin.resources.run import FUNCTIONS
from gateway.api.admin.resources.table import OPERATIONS, Operation
from gateway.api.admin.routes import Act, AdminCall, AdminPage, Json, read_body, route
from gateway.domain.errors import Overloaded
from gateway.domain.scopes import AdminRole
from gateway.fleet.availability import ModelRecord
from gateway.pipeline.pipeline import KeyAuthenticator
from gateway.storage import Store

_NAMES = re.compile(r"{(\w+)(?::path)?}")


class StoreAdmin:
    """Uses the store in a thread: it waits for the disk."""

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
        """Operations that are being done apart."""

    def routes(self, keys: KeyAuthenticator) -> list[Route]:
        """The pages, for who presents one of ``keys``, in the order of the table."""
        methods: dict[str, dict[str, tuple[AdminRole, Act]]] = {}
        queries: dict[str, tuple[str, ...]] = {}
        for operation in OPERATIONS.values():
            if not operation.only_here:
                acts = methods.setdefault(operation.path, {})
                acts[operation.method] = (operation.role, self._act(operation))
                if operation.query:
                    queries[operation.path] = operation.query
        return [route(path, AdminPage(keys, acts, queries.get(path, ()))) for path, acts in methods.items()]

    def _act(self, operation: Operation) -> Act:
        names = _NAMES.findall(operation.path)

        async def act(call: AdminCall) -> Json:
            kind = (await asyncio.to_thread(_kinds)).get(operation.name)
            given = {} if kind is None else call.query() if operation.query else await call.body()
            body = {} if kind is None else read_body(kind, given).model_dump(exclude_unset=True)
            if operation.apart:
                await call.body()  # none is wanted, and a client that leaves is seen behind it
                async with call.while_here():
                    return await self._apart(operation, body)
            asked = AdminRequest(self._wall(), self._serves, tuple(call.names[name] for name in names), body)
            return await asyncio.to_thread(FUNCTIONS[operation.name], self._store, asked)

        act.__name__ = operation.name
        return act

    async def _apart(self, operation: Operation, body: Json) -> Json:
        """In a process of its own, which takes no time from the event loop, and ends with the request."""
        if operation.name in self.running:
            raise Overloaded(f"{_words(operation.name)} is being done already: ask again when that is over.")
        self.running.add(operation.name)
        try:
            return await do_apart(self._store.state_dir, operation.name, body)
        finally:
            self.running.discard(operation.name)

    def _serves(self, model: str, version: str | None) -> bool:
        record = self._models().get(model)
        if record is None:
            return False
        able = [*record.serving.values(), *record.loadable.values()]
        return any(version is None or each.version == version for each in able)


def _words(name: str) -> str:
    return name.replace("_", " ").capitalize()


def _kinds() -> Mapping[str, type[BaseModel]]:
    """What bodies and queries are taken. Imported at the first request, in a thread: neither a start nor the
    event loop waits the 15 ms that making these classes takes."""
    from gateway.api.admin.bodies import BODIES, QUERIES

    return BODIES | QUERIES
