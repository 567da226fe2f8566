"""A tiny HTTP CONNECT proxy, as the ``HTTPS_PROXY`` of a company is one; it can ask for a password."""

import asyncio
import base64
import contextlib
from collections.abc import Mapping

from tests.support.local_server import LocalServer, pump


class ConnectProxy(LocalServer):
    """Listens on an ephemeral port of 127.0.0.1. ``tunnels`` lists the targets asked for, in order.

    ``names`` is its DNS: the port of 127.0.0.1 that a target ``HOST:PORT`` is; others stay as they are.
    """

    def __init__(
        self, credentials: tuple[str, str] | None = None, names: Mapping[str, int] | None = None
    ) -> None:
        super().__init__()
        self._names = names or {}
        self.tunnels: list[str] = []
        self.refused = 0
        """Requests answered 407 or 405."""
        self._expected = None
        if credentials is not None:
            self._expected = "Basic " + base64.b64encode(":".join(credentials).encode()).decode()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            await self._tunnel(reader, writer)
        self._writers.discard(writer)
        writer.close()

    async def _tunnel(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        method, target, _ = head[0].split(" ", 2)
        headers = {
            name.lower(): value.strip() for name, _, value in (line.partition(":") for line in head[1:])
        }
        if method != "CONNECT":
            return self._refuse(writer, "405 Method Not Allowed")
        if self._expected is not None and headers.get("proxy-authorization") != self._expected:
            return self._refuse(writer, "407 Proxy Authentication Required")
        self.tunnels.append(target)
        host, _, said_port = target.rpartition(":")
        port = self._names.get(target)
        where = (host, int(said_port)) if port is None else ("127.0.0.1", port)
        onward_reader, onward = await asyncio.open_connection(*where)
        self._writers.add(onward)
        writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
        try:
            await asyncio.gather(pump(reader, onward), pump(onward_reader, writer))
        finally:
            self._writers.discard(onward)
            onward.close()

    def _refuse(self, writer: asyncio.StreamWriter, status: str) -> None:
        self.refused += 1
        writer.write(f"HTTP/1.1 {status}\r\ncontent-length: 0\r\n\r\n".encode())
