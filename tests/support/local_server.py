"""A server on loopback that lives as long as a block, and carries bytes from one connection to another."""

import asyncio
import ssl
from types import TracebackType
from typing import Self


class LocalServer:
    """Listens on an ephemeral port of 127.0.0.1, with TLS if there is a context. An async context manager.

    Subclasses say in ``_serve`` what becomes of a connection, and keep in ``_writers`` what is to be aborted
    when the block ends.
    """

    def __init__(self, context: ssl.SSLContext | None = None) -> None:
        self._context = context
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()

    @property
    def port(self) -> int:
        assert self._server is not None, "not started"
        return int(self._server.sockets[0].getsockname()[1])

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, ssl=self._context)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._server is not None
        self._server.close()
        for writer in tuple(self._writers):
            writer.transport.abort()
        await self._server.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        raise NotImplementedError


async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Pass bytes on until the source ends, then end the sink."""
    while data := await reader.read(64 * 1024):
        writer.write(data)
        await writer.drain()
    if writer.can_write_eof():
        writer.write_eof()
    else:
        writer.close()
