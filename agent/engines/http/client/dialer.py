"""New connections to one engine."""

import asyncio
import errno
import socket
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar, cast
from urllib.parse import urlsplit

from aiohappyeyeballs import AddrInfoType, start_connection

from agent.engines.backend import BackendUnreachable

P = TypeVar("P", bound=asyncio.BaseProtocol)

NAMES_S = 10.0
"""How long the addresses of a name are remembered."""

NEXT_ADDRESS_S = 0.25
"""An address that has not answered for so long gets company of the next one (RFC 8305 §5)."""


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
            raise BackendUnreachable(self._why(error)) from error

    def _why(self, error: OSError | ValueError) -> str:
        number = error.errno if isinstance(error, OSError) else None
        if number in (errno.EMFILE, errno.ENFILE):
            return "the agent has no file descriptors left for connections"
        return f"the engine cannot be connected to: {self._words(error)}"

    def _words(self, error: OSError | ValueError) -> str:
        match error:
            case ConnectionRefusedError() | FileNotFoundError():
                return f"nobody listens at {self._unix_socket or f'{self._host} port {self._port}'}"
            case socket.gaierror():
                return f"the name {self._host} cannot be resolved"
            case ssl.SSLCertVerificationError():
                return f"its certificate is not trusted ({error.verify_message})"
            case ssl.SSLError():
                return "it speaks no TLS that is understood here; is it http:// in place of https://?"
            case OSError():
                return error.strerror or str(error)
        return str(error)

    async def _connect(self, protocol: Callable[[], P]) -> P:
        loop = asyncio.get_running_loop()
        server_name = None if self._tls is None else self._host
        if self._unix_socket is not None:
            _, made = await loop.create_unix_connection(
                protocol, str(self._unix_socket), ssl=self._tls, server_hostname=server_name
            )
            return made
        connected = await start_connection(await self._resolve(loop), happy_eyeballs_delay=NEXT_ADDRESS_S)
        try:
            _, made = await loop.create_connection(
                protocol, sock=connected, ssl=self._tls, server_hostname=server_name
            )
        except BaseException:
            connected.close()
            raise
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
