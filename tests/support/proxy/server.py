"""The proxy itself: accepts, connects onwards, and breaks what it is told to break."""

import asyncio
import contextlib
import socket
import struct
from collections.abc import Callable
from types import TracebackType
from typing import Self

from tests.support.proxy.link import Link, Pipe, Side


def _reset(sock: socket.socket) -> None:
    """Close with a RST instead of a FIN."""
    with contextlib.suppress(OSError):
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    sock.close()


class Connection:
    """One accepted connection and its way onwards."""

    def __init__(self, client: socket.socket, server: socket.socket, link: Link) -> None:
        self._sockets = {Side.CLIENT: client, Side.SERVER: server}
        self.client_port = int(client.getpeername()[1])
        self.up = Pipe(client, server, link)
        """From the client to the server."""
        self.down = Pipe(server, client, link)
        self._task: asyncio.Task[None] | None = None

    async def run(self) -> None:
        """Carry bytes both ways until both have ended or a side resets; then both are closed."""
        self._task = asyncio.current_task()
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self.up.run())
                tasks.create_task(self.down.run())
        except* OSError:
            for sock in self._sockets.values():
                _reset(sock)
        finally:
            for sock in self._sockets.values():
                sock.close()

    async def cut(self, keep: Side | None = None) -> socket.socket | None:
        """Stop carrying and reset both sides, but not ``keep``, whose socket is returned open."""
        kept = None if keep is None else self._sockets.pop(keep)
        closing = tuple(self._sockets.values())
        self._sockets = {}
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
        for sock in closing:
            _reset(sock)
        return kept


class FaultyProxy:
    """A TCP proxy on an ephemeral port of ``listen_host``. Use as an async context manager.

    The faults act on all connections open at the time; ``connections`` allows more exact ones through
    ``Pipe.tamper`` and ``Pipe.end_at_bytes``.
    """

    def __init__(
        self, host: str, port: int, link: Link | None = None, *, listen_host: str = "127.0.0.1"
    ) -> None:
        self.target = (host, port)
        self._listen_host = listen_host
        self.link = link or Link()
        self.connections: set[Connection] = set()
        self.accepted = 0
        """How many connections there have been."""
        self.refusing = False
        """True: new connections are reset at once."""
        self.recordings: list[bytearray] | None = None
        """A list: what each new connection's client sends is kept in an entry of its own."""
        self._listener = socket.socket()
        self._port = 0
        self._whose: Callable[[int], bool] | None = None
        """Whose connections are parted; None: all."""
        self._healed = asyncio.Event()
        self._healed.set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._held: list[socket.socket] = []
        self._waiting: set[socket.socket] = set()
        """Accepted, and not yet of a connection."""

    @property
    def port(self) -> int:
        return self._port

    @property
    def url(self) -> str:
        return f"http://{self._listen_host}:{self.port}"

    async def __aenter__(self) -> Self:
        self._listen(0)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop_listening()
        for task in tuple(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for sock in (*self._waiting, *self._held):
            sock.close()

    async def cut(self) -> None:
        """Reset every connection, on both sides."""
        await asyncio.gather(*(connection.cut() for connection in tuple(self.connections)))

    def cut_within(self, up_bytes: int, down_bytes: int) -> None:
        """Reset every connection once that many more bytes went through it, whichever way is first."""
        for pipe, more_bytes in self._pipes(up_bytes, down_bytes):
            pipe.reset_at_bytes = pipe.carried_bytes + more_bytes

    def truncate(self, up_bytes: int, down_bytes: int) -> None:
        """As :meth:`cut_within`, but what went through is the end of the connection, in order."""
        for pipe, more_bytes in self._pipes(up_bytes, down_bytes):
            pipe.end_at_bytes = pipe.carried_bytes + more_bytes

    def vanish(self) -> None:
        """Every connection is a black hole from now on, for both sides; new ones are not."""
        for pipe, _ in self._pipes(0, 0):
            pipe.vanishing = True

    def reshape(self, link: Link) -> None:
        """The network is like this now, for what is open (but for its buffers) and for what comes."""
        self.link = link
        for pipe, _ in self._pipes(0, 0):
            pipe.link = link

    def _pipes(self, up_bytes: int, down_bytes: int) -> list[tuple[Pipe, int]]:
        ups = [(connection.up, up_bytes) for connection in self.connections]
        return ups + [(connection.down, down_bytes) for connection in self.connections]

    def stall(self) -> None:
        """Stop carrying bytes; nothing is lost."""
        for connection in self.connections:
            connection.up.stall()
            connection.down.stall()

    def resume(self) -> None:
        for connection in self.connections:
            connection.up.resume()
            connection.down.resume()

    async def half_open(self, left: Side) -> None:
        """Make every connection vanish for one side while ``left`` notices nothing."""
        for connection in tuple(self.connections):
            kept = await connection.cut(keep=left)
            if kept is not None:
                self._held.append(kept)

    def corrupt(self) -> None:
        """Flip a bit in the next bytes of every connection, in both directions."""
        for connection in self.connections:
            for pipe in (connection.up, connection.down):
                pipe.tamper = _flip_once(pipe)

    def part(self, whose: Callable[[int], bool] | None = None) -> None:
        """Nothing gets through until :meth:`heal`, on new connections neither; nothing is lost or ended.
        ``whose``: only on connections of clients that it says this of, by their port."""
        self._whose = whose
        self._healed.clear()
        for connection in self.connections:
            if whose is None or whose(connection.client_port):
                connection.up.stall()
                connection.down.stall()

    def heal(self) -> None:
        """After :meth:`part`."""
        self._healed.set()
        self.resume()

    async def _until_let_through(self, port: int) -> None:
        while not self._healed.is_set() and (self._whose is None or self._whose(port)):
            await self._healed.wait()

    async def go_away(self) -> None:
        """End all connections and refuse new ones, as the host of a process that is gone does."""
        self._stop_listening()
        await self.cut()

    def come_back(self) -> None:
        """On the same port, after :meth:`go_away`."""
        self._listener = socket.socket()
        self._listen(self._port)

    def _listen(self, port: int) -> None:
        self.link.prepare(self._listener)
        self._listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._listener.bind((self._listen_host, port))
        self._listener.listen(1024)
        self._port = int(self._listener.getsockname()[1])
        asyncio.get_running_loop().add_reader(self._listener, self._accept)

    def _stop_listening(self) -> None:
        if self._listener.fileno() >= 0:
            asyncio.get_running_loop().remove_reader(self._listener)
            self._listener.close()

    def _accept(self) -> None:
        """In no task: one that is cancelled may drop what it has just accepted."""
        try:
            client, _ = self._listener.accept()
        except (BlockingIOError, ConnectionAbortedError):
            return
        self.accepted += 1
        if self.refusing:
            _reset(client)
            return
        client.setblocking(False)
        self._waiting.add(client)
        task = asyncio.get_running_loop().create_task(self._serve(client))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, client: socket.socket) -> None:
        try:
            await self._until_let_through(client.getpeername()[1])
        except OSError:
            self._waiting.discard(client)
            client.close()
            return
        server = socket.socket()
        self.link.prepare(server)
        try:
            await asyncio.get_running_loop().sock_connect(server, self.target)
        except OSError:
            self._waiting.discard(client)
            _reset(client)
            server.close()
            return
        except asyncio.CancelledError:
            server.close()
            raise
        for sock in (client, server):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection = Connection(client, server, self.link)
        self._waiting.discard(client)
        self.connections.add(connection)
        if self.recordings is not None:
            connection.up.tamper = _recorder(self.recordings)
        try:
            await connection.run()
        finally:
            self.connections.discard(connection)


def _recorder(recordings: list[bytearray]) -> Callable[[int, bytes], bytes]:
    kept = bytearray()
    recordings.append(kept)

    def record(offset: int, data: bytes) -> bytes:
        kept.extend(data)
        return data

    return record


def _flip_once(pipe: Pipe) -> Callable[[int, bytes], bytes]:
    def tamper(offset: int, data: bytes) -> bytes:
        pipe.tamper = None
        return bytes([data[0] ^ 0x10]) + data[1:] if data else data

    return tamper
