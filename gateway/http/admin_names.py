"""``/admin/aliases`` and ``/admin/tokens``: what names stand for, and what lets agents join."""

import asyncio
import time
from collections.abc import Callable
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field
from starlette.routing import Route

from gateway.aliases import TARGETS, Alias, BadAlias, read_targets
from gateway.errors import BadRequest
from gateway.http.admin import Call, Json, Page, read_body, route
from gateway.pipeline import Keys
from gateway.scopes import Role
from gateway.store import AliasStore, TokenRecord, TokenStore


class Targets(BaseModel):
    """Body of ``PUT /admin/aliases/{alias}``; targets as ``trunkline alias set`` reads them."""

    model_config = ConfigDict(extra="forbid", strict=True)

    targets: Annotated[list[str], Field(min_length=1, max_length=TARGETS)]
    sticky: bool | None = None


class NewToken(BaseModel):
    """Body of ``POST /admin/tokens``; the words of ``trunkline token create``."""

    model_config = ConfigDict(extra="forbid", strict=True)

    life_s: float = 86_400.0
    uses: int = 1
    models: Annotated[list[str], Field(max_length=64)] = ["*"]
    labels: Annotated[dict[str, str], Field(max_length=64)] = {}


class NameAdmin:
    """Uses the store in a thread: it waits for the disk."""

    def __init__(
        self, aliases: AliasStore, tokens: TokenStore, wall: Callable[[], float] = time.time
    ) -> None:
        self._aliases = aliases
        self._tokens = tokens
        self._wall = wall

    def routes(self, keys: Keys) -> list[Route]:
        """The pages, for who presents one of ``keys``. A model's name may hold slashes."""
        operator, admin = Role.OPERATOR, Role.ADMIN
        one = {"PUT": (operator, self.set_alias), "DELETE": (operator, self.remove_alias)}
        tokens = {"GET": (admin, self.list_tokens), "POST": (admin, self.create_token)}
        return [
            route("/admin/aliases", Page(keys, {"GET": (Role.VIEWER, self.list_aliases)})),
            route(
                "/admin/aliases/{alias:path}/rollback", Page(keys, {"POST": (operator, self.rollback_alias)})
            ),
            route("/admin/aliases/{alias:path}", Page(keys, one)),
            route("/admin/tokens", Page(keys, tokens)),
            route("/admin/tokens/{token}", Page(keys, {"DELETE": (admin, self.revoke_token)})),
        ]

    async def list_aliases(self, call: Call) -> Json:
        """Every alias and what it stands for."""
        records = await asyncio.to_thread(self._aliases.list)
        return {"aliases": [_alias_facts(record.alias) for record in records]}

    async def set_alias(self, call: Call) -> Json:
        """Have a name stand for these, from the next request on."""
        wish = read_body(Targets, await call.body())
        try:
            targets = read_targets(wish.targets)
        except BadAlias as error:
            raise BadRequest(f"{error}.", param="targets", code="invalid_value") from None
        name, now_s = call.names["alias"], self._wall()
        alias = await asyncio.to_thread(self._aliases.set_targets, name, targets, now_s, sticky=wish.sticky)
        return _alias_facts(alias)

    async def rollback_alias(self, call: Call) -> Json:
        """Have it stand for what it stood for before."""
        return _alias_facts(
            await asyncio.to_thread(self._aliases.rollback, call.names["alias"], self._wall())
        )

    async def remove_alias(self, call: Call) -> Json:
        """Forget it; the name is a model's again, or nobody's."""
        alias = await asyncio.to_thread(self._aliases.remove, call.names["alias"], self._wall())
        return {"alias": alias.name, "removed": True}

    async def list_tokens(self, call: Call) -> Json:
        """Every join token; their secrets are not kept."""
        now_s = self._wall()
        records = await asyncio.to_thread(self._tokens.list)
        return {"tokens": [_token_facts(record, now_s) for record in records]}

    async def create_token(self, call: Call) -> Json:
        """Make a join token. Its text is in the answer, this once."""
        wish, now_s = read_body(NewToken, await call.body()), self._wall()
        token, text = await asyncio.to_thread(
            self._tokens.create, wish.life_s, wish.uses, wish.models, wish.labels, now_s
        )
        return {"token": text, "id": token.id_text, "expires_s": now_s + wish.life_s, "uses": wish.uses}

    async def revoke_token(self, call: Call) -> Json:
        """By its id. Agents that joined with it stay."""
        name = call.names["token"]
        if name.startswith("tlj_"):
            raise BadRequest("Name the token by its id: the token itself is a secret.", code="invalid_value")
        record = await asyncio.to_thread(self._tokens.revoke, name, self._wall())
        return {"id": record.id, "revoked": True}


def _alias_facts(alias: Alias) -> dict[str, Any]:
    return {"alias": alias.name, **alias.to_dict()}


def _token_facts(record: TokenRecord, wall_s: float) -> dict[str, Any]:
    return {
        "id": record.id,
        "state": record.state(wall_s).value,
        "uses": record.uses,
        "uses_allowed": record.uses_allowed,
        "expires_s": record.expires_s,
        "models": list(record.models),
        "labels": dict(record.labels),
    }
