"""Runs uvicorn with the gateway's own sockets, signal handling and way to stop."""

import asyncio
import contextlib
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
from gateway.api.server.tunnel_passing import PassOn
from gateway.domain.turn_end import TurnEnd
from gateway.runtime.descriptors import DescriptorBudget
from gateway.runtime.listeners import BACKLOG, ListenFailed, listen

KEEP_ALIVE_S = 75
"""Longer than the 60 s of common proxies, so that they close idle connections, not we under them."""

LAST_WORDS_S = 1
"""For connections to take the last bytes of answers that are over."""

_LOOK_S = 0.02

_DATE_S = 1.0
"""How often the date of answers is written anew."""


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
    return listen(address.host, address.port)


class _TakenOver(asyncio.Protocol):
    """Gives the protocol that ``make`` makes what was read of its connection elsewhere, before all else."""

    def __init__(self, make: Callable[[], asyncio.Protocol], data: bytes) -> None:
        self._make = make
        self._data = data

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        protocol = self._make()
        transport.set_protocol(protocol)
        protocol.connection_made(transport)
        protocol.data_received(self._data)


class GatewayServer(uvicorn.Server):
    """Serves until :attr:`should_exit`; leaves signals to whoever runs it. Create it on the event loop."""

    def __init__(
        self, config: Config, tls: Tls | None = None, handshakes: TlsHandshakeLimiter | None = None
    ) -> None:
        """With ``handshakes``, TLS is ended here; ``tls`` looks after its certificate."""
        self._exit = asyncio.Event()
        super().__init__(config)
        self.tls = tls
        self._handshakes = handshakes
        self.ready = asyncio.Event()
        """Set once clients can connect."""
        self._listeners: list[socket.socket] = []
        """Copies of those we serve: one that the event loop lets go of still listens."""
        self._held = False
        self._left = False
        self._plain: socket.socket | None = None
        self._covered: dict[int, tuple[socket.socket, socket.socket | None]] = {}
        """Listening sockets of other workers that are away, and those whose clients are sent on to HTTPS."""
        self._covering: dict[int, list[asyncio.Server]] = {}
        """What accepts from them, unless this server is held."""
        self._changing = asyncio.Lock()
        """Held while what is listened on changes."""
        self._closing: set[asyncio.Future[None]] = set()
        self._taken_over: set[asyncio.BaseTransport] = set()
        self._prune_at = 64
        self._sent_on: set[Redirect] = set()

    @property
    def should_exit(self) -> bool:
        """It stops serving as soon as this is set, which is for the event loop's thread."""
        return self._exit.is_set()

    @should_exit.setter
    def should_exit(self, exits: bool) -> None:
        if exits:
            self._exit.set()
        else:
            self._exit.clear()

    async def main_loop(self) -> None:
        """As uvicorn's own, which looks ten times a second whether it is to exit."""
        while not await self.on_tick(0):
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_DATE_S):
                    await self._exit.wait()

    def send_on(self, listener: socket.socket) -> None:
        """Answer plain HTTP at ``listener`` with where HTTPS is. To be called before it serves."""
        self._plain = listener

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        self._listeners = [listener.dup() for listener in sockets or []]
        self.servers = await self._listen(sockets or [], self._plain)
        self.started = True
        self.ready.set()

    async def _listen(
        self, sockets: list[socket.socket], plain: socket.socket | None
    ) -> list[asyncio.Server]:
        """As uvicorn does it, but with bounds on handshakes. The servers close ``sockets``; ``plain`` stays
        open."""
        loop = asyncio.get_running_loop()
        make = self._make_protocol()
        if self._handshakes is not None:
            make = self._handshakes.before(make)
        servers = [await loop.create_server(make, sock=each, backlog=BACKLOG) for each in sockets]
        if plain is not None:
            send_on = functools.partial(Redirect, sockets[0].getsockname()[1], self._sent_on)
            servers.append(await loop.create_server(send_on, sock=plain.dup(), backlog=BACKLOG))
        return servers

    def _make_protocol(self) -> Callable[[], asyncio.Protocol]:
        """Makes the protocol of a connection without TLS, or inside it."""
        protocol: Any = self.config.http_protocol_class
        return functools.partial(
            protocol,
            config=self.config,
            server_state=self.server_state,
            app_state=self.lifespan.state,
        )

    async def hold(self, hold: bool) -> None:
        """Accept nobody while ``hold`` is true: an ``accept`` that cannot succeed would keep the event loop
        turning at full speed. Who connects meanwhile waits in the kernel's queue."""
        async with self._changing:
            if self._left:
                return
            if hold and not self._held and self.ready.is_set():
                self._held = True
                for server in self.servers:
                    server.close()
                self._covering.clear()
            elif self._held and not hold and not self.should_exit:
                with contextlib.suppress(OSError):  # none left again: the next look tries again
                    own = await self._listen([listener.dup() for listener in self._listeners], self._plain)
                    self.servers += own  # those before still know the connections that they accepted
                    self._held = False
                    for place in self._covered:
                        await self._accept_for(place)

    async def cover(self, place: int, listener: socket.socket, plain: socket.socket | None) -> None:
        """Accept from the sockets of another worker as well, which this server closes when it is released
        from it or ends."""
        async with self._changing:
            if self._left or self.should_exit:
                _close(listener, plain)
                return
            self._covered[place] = listener, plain
            if not self._held:
                with contextlib.suppress(OSError):  # none left: not held yet, but soon
                    await self._accept_for(place)

    async def release(self, place: int) -> None:
        """Accept for that place no more; the connections that there are stay."""
        async with self._changing:
            if place in self._covered:
                _close(*self._covered.pop(place))
            for server in self._covering.pop(place, ()):
                server.close()
                self._forget(server)

    async def _accept_for(self, place: int) -> None:
        listener, plain = self._covered[place]
        self._covering[place] = await self._listen([listener.dup()], plain)
        self.servers += self._covering[place]

    def _forget(self, server: asyncio.Server) -> None:
        """As soon as the connections have ended that it accepted: workers may come and go for months."""
        task = asyncio.ensure_future(server.wait_closed())
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)
        task.add_done_callback(lambda _: self.servers.remove(server))

    def take_over(self, connection: socket.socket, data: bytes) -> None:
        """Go on with a connection that another worker accepted, and of which it has read ``data``. Only
        without TLS."""
        loop = asyncio.get_running_loop()
        make = self._make_protocol()

        async def begin() -> None:
            try:
                transport, _ = await loop.connect_accepted_socket(lambda: _TakenOver(make, data), connection)
            except OSError:
                connection.close()
                return
            self._taken_over.add(transport)
            if len(self._taken_over) >= self._prune_at:
                self._taken_over = {each for each in self._taken_over if not each.is_closing()}
                self._prune_at = 2 * len(self._taken_over) + 64

        task = loop.create_task(begin())
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)

    async def leave(self) -> None:
        """Accept nobody any more, and close each connection after its next answer: another process serves at
        the address."""
        await self.hold(True)
        self._left = True
        protocol: Any = self.config.http_protocol_class
        protocol.leaving = True
        for connection in list(self.server_state.connections):
            if (cycle := getattr(connection, "cycle", None)) is not None:
                cycle.keep_alive = False

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
        for covered in self._covered.values():
            _close(*covered)
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
        for server in list(self.servers):
            await server.wait_closed()
        while not all(each.is_closing() for each in self._taken_over):  # noqa: ASYNC110 (nobody tells us)
            await asyncio.sleep(_LOOK_S)

    def abort_connections(self) -> None:
        """Cut every client connection that is still there."""
        for connection in list(self.server_state.connections):
            transport = getattr(connection, "transport", None)
            if transport is not None:
                transport.abort()


def _close(*sockets: socket.socket | None) -> None:
    for each in sockets:
        if each is not None:
            each.close()


def build_server(
    app: Any,
    address: Address,
    limits: ConnectionLimits,
    tunnel_protocol: Callable[..., Any],
    descriptors: DescriptorBudget | None = None,
    places: PerAddressLimiter | None = None,
    *,
    wants_certificate: bool = False,
    turn_end: TurnEnd | None = None,
    pass_on: PassOn | None = None,
) -> GatewayServer:
    """The server for ``app``, with ``tunnel_protocol`` as what becomes of upgraded connections, but for those
    that another worker takes from ``pass_on``.

    uvicorn believes no headers of proxies; :mod:`gateway.api.server.client_addresses` does, where they are
    trusted. ``turn_end`` is told what clients' connections have read. Raises :class:`ListenFailed` for TLS
    files that cannot be used.
    """
    tls = None if address.tls is None else _tls(address.tls)
    config = Config(
        app,
        http=bounded(
            limits,
            descriptors,
            places,
            wants_certificate=wants_certificate,
            turn_end=turn_end,
            pass_on=pass_on,
        ),
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
