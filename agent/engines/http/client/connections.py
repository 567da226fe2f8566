"""Connections to one engine: how they are made, and how they are kept for another request."""

import asyncio
import errno
import socket
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar, cast
from urllib.parse import urlsplit

from aiohappyeyeballs import AddrInfoType, start_connection

from agent.engines.backend import BackendFailed, BackendUnreachable
from agent.engines.http.client.connection import EngineConnection
from shared.process.connected_sockets import transport_over

P = TypeVar("P", bound=asyncio.BaseProtocol)

NAMES_S = 10.0
"""How long the addresses of a name are remembered."""

NEXT_ADDRESS_S = 0.25
"""An address that has not answered for so long gets company of the next one (RFC 8305 §5)."""


class NoDescriptors(BackendUnreachable):
    """The agent has no file descriptors left. This says nothing of the engine."""


class EngineConnector:
    """Connects to ``url``'s host, or to ``unix_socket``, within ``connect_s``."""

    def __init__(self, url: str, unix_socket: Path | None, connect_s: float) -> None:
        parts = urlsplit(url)
        assert parts.hostname is not None
        self._host = parts.hostname
        self._port = parts.port or (443 if parts.scheme == "https" else 80)
        self._unix_socket = unix_socket
        self._connect_s = connect_s
        self._tls = _tls() if parts.scheme == "https" else None
        self._addresses: list[AddrInfoType] = []
        self._known_until_s = 0.0

    async def dial(self, protocol: Callable[[], P]) -> P:
        """Raises :class:`BackendUnreachable`."""
        try:
            async with asyncio.timeout(self._connect_s):
                return await self._connect(protocol)
        except TimeoutError:
            raise BackendUnreachable("the engine does not accept connections (timed out)") from None
        except (OSError, ValueError) as error:
            self._known_until_s = 0.0
            if isinstance(error, OSError) and error.errno in (errno.EMFILE, errno.ENFILE):
                raise NoDescriptors("the agent has no file descriptors left for connections") from error
            raise BackendUnreachable(self._why(error)) from error

    def _why(self, error: OSError | ValueError) -> str:
        match error:
            case ConnectionRefusedError() | FileNotFoundError():
                why = f"nobody listens at {self._unix_socket or f'{self._host} port {self._port}'}"
            case socket.gaierror():
                why = f"the name {self._host} cannot be resolved"
            case ssl.SSLCertVerificationError():
                why = f"its certificate is not trusted ({error.verify_message})"
            case ssl.SSLError():
                why = "it speaks no TLS that is understood here; is it http:// in place of https://?"
            case _:
                why = getattr(error, "strerror", None) or str(error)
        return f"the engine cannot be connected to: {why}"

    async def _connect(self, protocol: Callable[[], P]) -> P:
        loop = asyncio.get_running_loop()
        if self._unix_socket is not None:
            server_name = None if self._tls is None else self._host
            _, made = await loop.create_unix_connection(
                protocol, str(self._unix_socket), ssl=self._tls, server_hostname=server_name
            )
            return made
        connected = await start_connection(await self._resolve(loop), happy_eyeballs_delay=NEXT_ADDRESS_S)
        _, made = await transport_over(connected, protocol, self._tls, self._host)
        return made

    async def _resolve(self, loop: asyncio.AbstractEventLoop) -> list[AddrInfoType]:
        if loop.time() >= self._known_until_s:
            found = await loop.getaddrinfo(self._host, self._port, type=socket.SOCK_STREAM)
            self._addresses = cast(list[AddrInfoType], found)
            self._known_until_s = loop.time() + NAMES_S
        return self._addresses


def _tls() -> ssl.SSLContext:
    context = ssl.create_default_context()
    context.set_alpn_protocols(["http/1.1"])
    return context


KEEP_IDLE_S = 2.0
"""How long an idle connection is kept: well below the 5 s after which uvicorn and llama.cpp close theirs."""

_LET_GO = "the agent let go of the engine"

IDLE = 256
"""Connections kept at once: a batch that ends together leaves as many as an engine has slots."""


class ConnectionPool:
    """It has no limit of its own to how many are in use: that is bounded by the engine's slots."""

    def __init__(self, dialer: EngineConnector) -> None:
        self._dialer = dialer
        self._idle: dict[EngineConnection, None] = {}
        """Longest at rest first."""
        self._busy: set[EngineConnection] = set()
        self._sweep: asyncio.TimerHandle | None = None
        self._closed = False
        self._heard_s = 0.0
        """Of answers that are over."""

    @property
    def heard_s(self) -> float:
        """When something of an answer came last, on the loop's clock; 0 if none ever did."""
        return max([self._heard_s, *(each.chunks.heard_s for each in self._busy if each.status)])

    @property
    def busy(self) -> int:
        """How many have a request."""
        return len(self._busy)

    def fail_all(self, error: Exception) -> None:
        """End all answers with ``error``, and their connections with them."""
        for connection in tuple(self._busy):
            connection.fail(error)

    def kept(self) -> EngineConnection | None:
        """The connection that has been at rest for the shortest time, if there is one. Whoever takes it hands
        it to :meth:`end`."""
        while self._idle:
            connection, _ = self._idle.popitem()
            rested_s = connection.now() - connection.rests_since_s
            if rested_s < KEEP_IDLE_S and not connection.transport.is_closing():
                self._busy.add(connection)
                return connection
            connection.transport.abort()
        return None

    async def fresh(self) -> EngineConnection:
        """As :meth:`kept`, but a new one. Raises :class:`agent.engines.backend.BackendUnreachable`."""
        connection = await self._dialer.dial(lambda: EngineConnection(self.forget))
        if self._closed:
            connection.transport.abort()
            raise BackendUnreachable(_LET_GO)
        self._busy.add(connection)
        return connection

    def end(self, connection: EngineConnection, *, keep: bool) -> None:
        """Keeps the connection, if ``keep`` and it can be; else closes it."""
        self._busy.discard(connection)
        if connection.status:
            heard_s = connection.chunks.heard_s
            if heard_s > self._heard_s:
                self._heard_s = heard_s
        if not (keep and connection.is_reusable()) or len(self._idle) >= IDLE or self._closed:
            connection.transport.abort()
            connection.end()
            return
        connection.end()
        connection.rests_since_s = connection.now()
        self._idle[connection] = None
        if self._sweep is None:
            self._sweep = asyncio.get_running_loop().call_later(KEEP_IDLE_S, self._drop_old)

    def forget(self, connection: EngineConnection) -> None:
        """It is closed."""
        self._idle.pop(connection, None)

    async def close(self) -> None:
        """Requests still running are cut off."""
        self._closed = True
        if self._sweep is not None:
            self._sweep.cancel()
        for connection in self._idle:
            connection.transport.abort()
        self._idle.clear()
        self.fail_all(BackendFailed(_LET_GO))
        await asyncio.sleep(0)  # for the sockets to be closed

    def _drop_old(self) -> None:
        loop = asyncio.get_running_loop()
        now, self._sweep = loop.time(), None
        for connection in tuple(self._idle):
            left_s = connection.rests_since_s + KEEP_IDLE_S - now
            if left_s > 0:
                self._sweep = loop.call_later(left_s, self._drop_old)
                return
            del self._idle[connection]
            connection.transport.abort()
