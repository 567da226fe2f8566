"""Runs uvicorn with the gateway's own sockets, signal handling and way to stop."""

import asyncio
import contextlib
import errno
import functools
import socket
from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any

import uvicorn
from uvicorn.config import Config

from gateway.api.server.client_addresses import PerAddressLimiter
from gateway.api.server.protocol import bounded
from gateway.api.server.request_parser import ConnectionLimits
from gateway.api.server.tls import HANDSHAKE_S, Redirect, Tls, TlsFiles
from gateway.api.server.tls_handshakes import HANDSHAKES, TlsHandshakeLimiter
from gateway.runtime.descriptors import DescriptorBudget

BACKLOG = 2048
KEEP_ALIVE_S = 75
"""Longer than the 60 s of common proxies, so that they close idle connections, not we under them."""

LAST_WORDS_S = 1
"""For connections to take the last bytes of answers that are over."""

UNSENT_BYTES = 128 * 1024
"""What the kernel takes of an answer beyond that which is on its way (TCP_NOTSENT_LOWAT, tcp(7)). Left alone
it takes megabytes for each client that has stopped reading."""

_LOOK_S = 0.02


class ListenFailed(Exception):
    """The address cannot be listened on, or the TLS files cannot be used."""


@dataclass(frozen=True, slots=True)
class Address:
    host: str
    port: int
    tls: TlsFiles | None = None

    @property
    def scheme(self) -> str:
        return "https" if self.tls is not None else "http"


def bind(address: Address) -> socket.socket:
    """A listening socket. Raises :class:`ListenFailed`."""
    try:
        family, *_ = socket.getaddrinfo(
            address.host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listener = socket.create_server((address.host, address.port), family=family, backlog=BACKLOG)
    except OSError as error:
        where = f"{address.host}:{address.port}"
        why = f"{error.strerror or error}"
        if error.errno == errno.EADDRINUSE:
            why = "something listens there already: stop it, or take another port"
        raise ListenFailed(f"cannot listen on {where}: {why}") from error
    with contextlib.suppress(OSError, AttributeError):  # its connections inherit it; not every system has it
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, UNSENT_BYTES)
    return listener


class GatewayServer(uvicorn.Server):
    """Serves until :attr:`should_exit`; leaves signals to whoever runs it. Create it on the event loop."""

    def __init__(
        self, config: Config, tls: Tls | None = None, handshakes: TlsHandshakeLimiter | None = None
    ) -> None:
        """With ``handshakes``, TLS is ended here; ``tls`` looks after its certificate."""
        super().__init__(config)
        self.tls = tls
        self._handshakes = handshakes
        self.ready = asyncio.Event()
        """Set once clients can connect."""
        self._listeners: list[socket.socket] = []
        """Copies of those we serve: one that the event loop lets go of still listens."""
        self._held = False
        self._plain: socket.socket | None = None
        self._sent_on: set[Redirect] = set()

    def send_on(self, listener: socket.socket) -> None:
        """Answer plain HTTP at ``listener`` with where HTTPS is. To be called before it serves."""
        self._plain = listener

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        self._listeners = [listener.dup() for listener in sockets or []]
        await self._listen(sockets or [])
        self.ready.set()

    async def _listen(self, sockets: list[socket.socket]) -> None:
        """As uvicorn does it, but with bounds on handshakes."""
        loop = asyncio.get_running_loop()
        protocol: Any = self.config.http_protocol_class
        make: Callable[[], asyncio.Protocol] = functools.partial(
            protocol,
            config=self.config,
            server_state=self.server_state,
            app_state=self.lifespan.state,
        )
        if self._handshakes is not None:
            make = self._handshakes.before(make)
        self.servers = [await loop.create_server(make, sock=each, backlog=BACKLOG) for each in sockets]
        if self._plain is not None:
            send_on = functools.partial(Redirect, sockets[0].getsockname()[1], self._sent_on)
            self.servers.append(await loop.create_server(send_on, sock=self._plain.dup(), backlog=BACKLOG))
        self.started = True

    async def hold(self, hold: bool) -> None:
        """Accept nobody while ``hold`` is true: an ``accept`` that cannot succeed would keep the event loop
        turning at full speed. Who connects meanwhile waits in the kernel's queue."""
        if hold and not self._held and self.ready.is_set():
            self._held = True
            for server in self.servers:
                server.close()
        elif self._held and not hold and not self.should_exit:
            before = self.servers  # they still know the connections that they accepted
            with contextlib.suppress(OSError):  # none left again: the next look tries again
                await self._listen([listener.dup() for listener in self._listeners])
                self._held = False
            self.servers = before if self._held else [*before, *self.servers]

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        yield

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Stop listening, close idle connections, give the others ``LAST_WORDS_S``, cut what is left.

        In place of uvicorn's own, which says in an error line that it cancelled requests even if there were
        none: a client that does not read its answer, or an agent slow to hang up, is enough.
        """
        for listener in (*self.servers, *self._listeners, *(sockets or ())):
            listener.close()
        if self._plain is not None:
            self._plain.close()
        for plain in list(self._sent_on):
            plain.abort()
        if self._handshakes is not None:
            self._handshakes.abort()
        for connection in list(self.server_state.connections):
            connection.shutdown()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LAST_WORDS_S):
                await self._emptied()
        self.abort_connections()
        if tasks := set(self.server_state.tasks):
            _, stuck = await asyncio.wait(tasks, timeout=LAST_WORDS_S)
            for task in stuck:
                task.cancel()

    async def _emptied(self) -> None:
        """Every client has hung up, and every agent, of whom only uvloop's servers know."""
        while self.server_state.connections or self.server_state.tasks:  # noqa: ASYNC110 (nobody tells us)
            await asyncio.sleep(_LOOK_S)
        for server in self.servers:
            await server.wait_closed()

    def abort_connections(self) -> None:
        """Cut every client connection that is still there."""
        for connection in list(self.server_state.connections):
            transport = getattr(connection, "transport", None)
            if transport is not None:
                transport.abort()


def build_server(
    app: Any,
    address: Address,
    limits: ConnectionLimits,
    tunnel_protocol: Callable[..., Any],
    descriptors: DescriptorBudget | None = None,
    places: PerAddressLimiter | None = None,
    *,
    wants_certificate: bool = False,
) -> GatewayServer:
    """The server for ``app``, with ``tunnel_protocol`` as what becomes of upgraded connections.

    uvicorn believes no headers of proxies; :mod:`gateway.api.server.client_addresses` does, where they are
    trusted. Raises :class:`ListenFailed` for TLS files that cannot be used.
    """
    tls = None if address.tls is None else _tls(address.tls)
    config = Config(
        app,
        http=bounded(limits, descriptors, places, wants_certificate=wants_certificate),
        ws=tunnel_protocol,  # type: ignore[arg-type]
        lifespan="off",
        interface="asgi3",
        log_config=None,
        access_log=False,
        proxy_headers=False,
        server_header=False,
        backlog=BACKLOG,
        timeout_keep_alive=KEEP_ALIVE_S,
    )
    config.load()
    if tls is None:
        return GatewayServer(config)
    fewer = (places or PerAddressLimiter()).fewer(HANDSHAKES)
    return GatewayServer(
        config, tls, TlsHandshakeLimiter(tls.context, fewer, limits.connections, HANDSHAKE_S, descriptors)
    )


def _tls(files: TlsFiles) -> Tls:
    try:
        return Tls(files)
    except (OSError, ValueError) as error:
        used = " and ".join(
            str(path) for path in (files.cert, files.key, files.client_ca) if path is not None
        )
        raise ListenFailed(f"cannot use {used} for TLS: {error}") from error
