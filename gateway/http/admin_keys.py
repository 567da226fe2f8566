"""``/admin/keys``: what ``trunkline key`` does, over HTTP."""

import asyncio
import time
from collections.abc import Callable
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field
from starlette.routing import Route

from gateway.access.facts import key_facts
from gateway.errors import BadRequest
from gateway.http.admin import Call, Json, Page, read_body, route
from gateway.pipeline import Keys
from gateway.quotas import BadQuota, Rates
from gateway.scopes import Role, limited
from gateway.store import DEFAULT_TENANT, KeyRecord, KeyStore
from gateway.where import BadWhere, where_of

Names = Annotated[list[str], Field(max_length=64)]
Limit = Annotated[int, Field(ge=1)]


class NewKey(BaseModel):
    """Body of ``POST /admin/keys``; the words of ``trunkline key create``."""

    model_config = ConfigDict(extra="forbid", strict=True)

    name: str
    tenant: str = DEFAULT_TENANT
    models: Names | None = None
    routes: Names | None = None
    tiers: Names | None = None
    where: Annotated[dict[str, Names], Field(max_length=64)] | None = None
    role: Annotated[Role, Field(strict=False)] | None = None
    life_s: float | None = None
    rpm: Limit | None = None
    tpm: Limit | None = None
    concurrency: Limit | None = None


class Rotation(BaseModel):
    """Body of ``POST /admin/keys/{key}/rotate``."""

    model_config = ConfigDict(extra="forbid", strict=True)

    overlap_s: float = 86_400.0


class KeyAdmin:
    """Uses the store in a thread: it waits for the disk."""

    def __init__(self, keys: KeyStore, wall: Callable[[], float] = time.time) -> None:
        self._keys = keys
        self._wall = wall

    def routes(self, keys: Keys) -> list[Route]:
        """The pages, for who presents one of ``keys``."""
        admin = Role.ADMIN
        return [
            route(
                "/admin/keys", Page(keys, {"GET": (admin, self.list_keys), "POST": (admin, self.create_key)})
            ),
            route("/admin/keys/{key}", Page(keys, {"DELETE": (admin, self.revoke_key)})),
            route("/admin/keys/{key}/rotate", Page(keys, {"POST": (admin, self.rotate_key)})),
        ]

    async def list_keys(self, call: Call) -> Json:
        """Every key, revoked ones too; no secret and no hash."""
        records = await asyncio.to_thread(self._keys.list)
        return {"keys": [self._facts(record) for record in records]}

    async def create_key(self, call: Call) -> Json:
        """Make a key. Its text is in the answer, this once."""
        wish = read_body(NewKey, await call.body())
        text, record = await asyncio.to_thread(self._create, wish)
        return {"key": text, **self._facts(record)}

    async def revoke_key(self, call: Call) -> Json:
        """It lets nobody in from the next request on."""
        record = await asyncio.to_thread(self._keys.revoke, call.names["key"], self._wall())
        return {"name": record.name, "id": record.id, "revoked": True}

    async def rotate_key(self, call: Call) -> Json:
        """Give it another secret, which is in the answer, this once."""
        overlap_s = read_body(Rotation, await call.body()).overlap_s
        record, text = await asyncio.to_thread(self._keys.rotate, call.names["key"], overlap_s, self._wall())
        return {"key": text, **self._facts(record)}

    def _create(self, wish: NewKey) -> tuple[str, KeyRecord]:
        try:
            where = None if wish.where is None else where_of(wish.where)
            rates = Rates(wish.rpm, wish.tpm, wish.concurrency)
        except (BadWhere, BadQuota) as error:
            raise BadRequest(f"{error}.", code="invalid_value") from None
        text = self._keys.create(
            wish.name,
            wish.tenant,
            self._wall(),
            where,
            scopes=limited(wish.models, wish.routes, wish.tiers),
            role=wish.role,
            life_s=wish.life_s,
            rates=rates,
        )
        return text, self._keys.get(wish.name)

    def _facts(self, record: KeyRecord) -> dict[str, Any]:
        return key_facts(record, self._wall())
