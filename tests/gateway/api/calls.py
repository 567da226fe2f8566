"""One request over raw ASGI."""

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from typing import Any


class Call:
    """One request over raw ASGI: the test feeds ``receive`` and reads what was sent."""

    def __init__(
        self,
        app: Callable[..., Coroutine[Any, Any, None]],
        method: str,
        path: str,
        headers: tuple[tuple[bytes, bytes], ...],
        *,
        decoded: str | None = None,
        query: bytes = b"",
    ) -> None:
        scope = {
            "type": "http",
            "method": method,
            "path": decoded if decoded is not None else path,
            "raw_path": path.encode("latin-1"),
            "query_string": query,
            "headers": list(headers),
            "root_path": "",
        }
        self._inbox: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self._news = asyncio.Event()
        self.sent: list[Mapping[str, Any]] = []
        self.gate = asyncio.Event()
        """Cleared, ``send`` waits as a full socket does."""
        self.gate.set()
        self.task = asyncio.get_running_loop().create_task(app(scope, self._inbox.get, self._send))

    async def _send(self, message: Mapping[str, Any]) -> None:
        await self.gate.wait()
        self.sent.append(message)
        if message["type"] == "http.response.body" and not message.get("more_body", False):
            self._inbox.put_nowait({"type": "http.disconnect"})
        self._news.set()

    def body(self, data: bytes, *, more: bool = False) -> None:
        self._inbox.put_nowait({"type": "http.request", "body": data, "more_body": more})

    def disconnect(self) -> None:
        self._inbox.put_nowait({"type": "http.disconnect"})

    async def done(self, within_s: float = 60) -> "Call":
        async with asyncio.timeout(within_s):
            await self.task
        return self

    async def until(self, condition: Callable[["Call"], object]) -> None:
        """Return as soon as what was sent fulfils ``condition``."""
        async with asyncio.timeout(60):
            while not condition(self):
                self._news.clear()
                await self._news.wait()

    @property
    def status(self) -> int:
        return int(self.sent[0]["status"])

    @property
    def headers(self) -> dict[str, str]:
        return {name.decode(): value.decode() for name, value in self.sent[0]["headers"]}

    @property
    def content(self) -> bytes:
        return b"".join(message.get("body", b"") for message in self.sent[1:])

    @property
    def complete(self) -> bool:
        """The answer was ended in order."""
        return bool(self.sent) and self.sent[-1].get("more_body") is False
