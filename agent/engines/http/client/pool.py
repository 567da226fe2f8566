"""The connections to one engine that wait for another request."""

import asyncio
from typing import cast

from agent.engines.http.client.dialer import EngineConnector
from agent.engines.http.client.exchange import EngineExchange

KEEP_IDLE_S = 2.0
"""How long an idle connection is kept. uvicorn and llama.cpp close theirs after 5 s; a request sent in that
moment would fail, so ours are dropped well before."""

IDLE = 256
"""Connections kept at once: a batch that ends together leaves as many as an engine has slots."""


class IdleConnection(asyncio.Protocol):
    """A connection, at rest: whatever comes now nobody asked for."""

    transport: asyncio.Transport

    def __init__(self, pool: "ConnectionPool") -> None:
        self._pool = pool
        self.rests_since_s = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self.transport.abort()

    def eof_received(self) -> None:
        self._pool.forget(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._pool.forget(self)


class ConnectionPool:
    """It has no limit of its own to how many are in use: that is bounded by the engine's slots."""

    def __init__(self, dialer: EngineConnector) -> None:
        self._dialer = dialer
        self._idle: dict[IdleConnection, None] = {}
        """Longest at rest first."""
        self._exchanges: set[EngineExchange] = set()
        self._sweep: asyncio.TimerHandle | None = None
        self._closed = False
        self._heard_s = 0.0
        """Of exchanges that are over."""

    @property
    def heard_s(self) -> float:
        """When something of an answer came last, on the loop's clock; 0 if none ever did."""
        return max(self._heard_s, *(exchange.heard_s for exchange in self._exchanges), 0.0)

    def kept(self) -> IdleConnection | None:
        """The connection that has been at rest for the shortest time, if there is one."""
        now = asyncio.get_running_loop().time()
        while self._idle:
            connection, _ = self._idle.popitem()
            if not connection.transport.is_closing() and now - connection.rests_since_s < KEEP_IDLE_S:
                return connection
            connection.transport.abort()
        return None

    async def fresh(self) -> IdleConnection:
        """Raises :class:`agent.engines.backend.BackendUnreachable`."""
        return await self._dialer.dial(lambda: IdleConnection(self))

    def begin(self, connection: IdleConnection, *, head_only: bool) -> EngineExchange:
        """The next exchange over ``connection``; to be handed to :meth:`end`."""
        exchange = EngineExchange(connection.transport, head_only=head_only)
        self._exchanges.add(exchange)
        return exchange

    def end(self, connection: IdleConnection, exchange: EngineExchange, *, keep: bool) -> None:
        """Keeps the connection, if ``keep`` and it can be; else closes it."""
        self._exchanges.discard(exchange)
        self._heard_s = max(self._heard_s, exchange.heard_s)
        keep = keep and exchange.reusable and len(self._idle) < IDLE and not self._closed
        exchange.let_go(cut=not keep)
        if keep:
            loop = asyncio.get_running_loop()
            connection.rests_since_s = loop.time()
            connection.transport.set_protocol(connection)
            self._idle[connection] = None
            if self._sweep is None:
                self._sweep = loop.call_later(KEEP_IDLE_S, self._drop_old)

    def forget(self, connection: IdleConnection) -> None:
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
        for exchange in tuple(self._exchanges):
            exchange.transport.abort()
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
