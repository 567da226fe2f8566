"""A server behind an agent and a gateway, and how a test asks it: through the gateway, or directly."""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from io import BytesIO
from typing import Any

import aiohttp
import orjson

from tests.support.processes import Gateway, House, fetch

PATIENCE_S = 300


@dataclass(frozen=True, slots=True)
class EngineSite:
    """``server_url`` is where the server itself answers, and ``key`` is for the gateway."""

    house: House
    gateway: Gateway
    key: str
    server_url: str

    def stats(self) -> Any:
        """What a stand-in says of what it was asked."""
        return fetch(f"{self.server_url}/_stats")

    @asynccontextmanager
    async def ask(
        self,
        path: str,
        body: object = None,
        headers: Mapping[str, str] | None = None,
        method: str = "",
        *,
        direct: bool = False,
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """A POST with a body, else a GET, through the gateway or to the server itself. Bytes are sent as they
        are, as JSON unless ``headers`` say otherwise; all else is made into JSON."""
        fields = {} if direct else {"authorization": f"Bearer {self.key}"}
        fields |= {} if body is None else {"content-type": "application/json"}
        sent = body if isinstance(body, bytes) else orjson.dumps(body)
        async with (
            aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(PATIENCE_S)) as session,
            session.request(
                method or ("GET" if body is None else "POST"),
                (self.server_url if direct else self.gateway.url) + path,
                data=None if body is None else BytesIO(sent),
                headers=fields | dict(headers or {}),
            ) as response,
        ):
            yield response
