"""Keys of one test on a Redis server, removed afterwards."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from redis.asyncio import Redis

from tests.support.redis_server import redis_server


@asynccontextmanager
async def redis_keys(directory: Path) -> AsyncIterator[tuple[Any, str, str]]:
    """A client, the server's URL and a prefix. Skips the test where there is no server."""
    with redis_server(directory) as (url, prefix):
        client: Any = Redis.from_url(url, decode_responses=True)
        try:
            yield client, url, prefix
        finally:
            found = [key async for key in client.scan_iter(f"{prefix}*", count=1000)]
            if found:
                await client.delete(*found)
            await client.aclose()
