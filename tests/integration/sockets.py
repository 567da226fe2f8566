"""A WebSocket through the gateway of a site."""

from typing import Any

from websockets.asyncio.client import connect

from tests.integration.conftest import Site


def open_socket(site: Site, path: str, *, key: str | None = None, **options: Any) -> connect:
    key = site.key if key is None else key
    return connect(
        site.gateway.url.replace("http", "ws", 1) + path,
        additional_headers={"authorization": f"Bearer {key}"} if key else {},
        compression=None,
        max_size=None,
        proxy=None,
        **options,
    )
