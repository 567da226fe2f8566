"""The operations of :mod:`gateway.admin` as pages of the admin API: what the commands do, over HTTP."""

import asyncio
import re
import time
from collections.abc import Callable, Mapping

from pydantic import BaseModel
from starlette.routing import Route

from gateway.admin.request import Request
from gateway.admin.run import FUNCTIONS
from gateway.admin.table import OPERATIONS, Operation
from gateway.deployments import ModelRecord
from gateway.http.admin import Act, Call, Json, Page, read_body, route
from gateway.pipeline import Keys
from gateway.scopes import Role
from gateway.store import Store

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

    def routes(self, keys: Keys) -> list[Route]:
        """The pages, for who presents one of ``keys``, in the order of the table."""
        methods: dict[str, dict[str, tuple[Role, Act]]] = {}
        for operation in OPERATIONS.values():
            acts = methods.setdefault(operation.path, {})
            acts[operation.method] = (operation.role, self._act(operation))
        return [route(path, Page(keys, acts)) for path, acts in methods.items()]

    def _act(self, operation: Operation) -> Act:
        names = _NAMES.findall(operation.path)

        async def act(call: Call) -> Json:
            kind = (await asyncio.to_thread(_bodies)).get(operation.name)
            body = {} if kind is None else read_body(kind, await call.body()).model_dump(exclude_unset=True)
            asked = Request(self._wall(), self._serves, tuple(call.names[name] for name in names), body)
            return await asyncio.to_thread(FUNCTIONS[operation.name], self._store, asked)

        act.__name__ = operation.name
        return act

    def _serves(self, model: str, version: str | None) -> bool:
        record = self._models().get(model)
        if record is None:
            return False
        able = [*record.serving.values(), *record.loadable.values()]
        return any(version is None or each.version == version for each in able)


def _bodies() -> Mapping[str, type[BaseModel]]:
    """What bodies are taken. Imported at the first request, in a thread: neither a start nor the event loop
    waits the 15 ms that making these classes takes."""
    from gateway.http.admin_bodies import BODIES

    return BODIES
