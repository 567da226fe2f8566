"""One direction of one connection: reads, paces, delays, tampers, writes."""

import asyncio
import socket
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

CHUNK_BYTES = 2896
"""What is read at once: two full segments of Ethernet, so that pacing is as fine as a real link's."""
SEGMENT_BYTES = 1448
"""The segment size announced to both peers. Loopback's own, 64 KiB, would not fit small buffers."""


class Side(StrEnum):
    """The two ends a proxy stands between."""

    CLIENT = "client"
    SERVER = "server"


@dataclass(frozen=True, slots=True)
class Link:
    """What the network between the two ends is like, the same in both directions."""

    rate_bytes_per_s: float | None = None
    """None is as fast as loopback goes."""
    delay_s: float = 0.0
    """One way."""
    buffer_bytes: int = 32 * 1024
    """Socket buffers on both sides: the queue of the link, 26 ms of a 10 Mbit/s one."""

    def prepare(self, sock: socket.socket) -> None:
        """Give ``sock`` the link's buffers; before ``listen`` or ``connect``, or they have no effect."""
        sock.setblocking(False)
        if self.rate_bytes_per_s is not None:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, self.buffer_bytes // 2)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, self.buffer_bytes // 2)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG, SEGMENT_BYTES)

    @property
    def chunks_in_flight(self) -> int:
        """How many chunks are on their way at most: the delay's worth, and a few."""
        if self.rate_bytes_per_s is None:
            return 256
        return 2 + int(self.rate_bytes_per_s * self.delay_s / CHUNK_BYTES)


class Pipe:
    """Carries bytes from ``source`` to ``sink`` until the source ends, then ends the sink."""

    def __init__(self, source: socket.socket, sink: socket.socket, link: Link) -> None:
        self._source = source
        self._sink = sink
        self.link = link
        """May be replaced while bytes are carried."""
        self._flowing = asyncio.Event()
        self._flowing.set()
        self._free_s = 0.0
        self._on_the_way: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(link.chunks_in_flight)
        self.carried_bytes = 0
        """Bytes read from the source so far."""
        self.tamper: Callable[[int, bytes], bytes] | None = None
        """Given the offset of some bytes and the bytes, what to send instead of them."""
        self.end_at_bytes: int | None = None
        """End the connection, in order, after this many bytes."""
        self.reset_at_bytes: int | None = None
        """Reset both sides once this many bytes were carried, in the middle of a write if need be."""
        self.vanishing = False
        """Bytes are taken and go nowhere."""

    def stall(self) -> None:
        self._flowing.clear()

    def resume(self) -> None:
        self._flowing.set()

    async def run(self) -> None:
        """Carry bytes until the end. Raises OSError when a side resets."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._take())
            tasks.create_task(self._deliver())

    async def _take(self) -> None:
        loop = asyncio.get_running_loop()
        over = False
        while not over:
            await self._flowing.wait()
            read = await loop.sock_recv(self._source, CHUNK_BYTES)
            await self._flowing.wait()
            if self.vanishing and read:
                continue
            data = self._changed(read)
            over = len(data) < len(read) or not read
            self.carried_bytes += len(data)
            await self._transmit(len(data))
            await self._on_the_way.put((loop.time() + self.link.delay_s, data))
        await self._on_the_way.put((loop.time() + self.link.delay_s, b""))

    def _changed(self, data: bytes) -> bytes:
        if self.tamper is not None:
            data = self.tamper(self.carried_bytes, data)
        ends = [at_bytes for at_bytes in (self.end_at_bytes, self.reset_at_bytes) if at_bytes is not None]
        if ends:
            data = data[: max(0, min(ends) - self.carried_bytes)]
        return data

    async def _transmit(self, size_bytes: int) -> None:
        """Take as long as the link needs for that many bytes."""
        if self.link.rate_bytes_per_s is None:
            return
        now_s = asyncio.get_running_loop().time()
        self._free_s = max(self._free_s, now_s - 0.002) + size_bytes / self.link.rate_bytes_per_s
        if self._free_s > now_s:
            await asyncio.sleep(self._free_s - now_s)

    async def _deliver(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            due_s, data = await self._on_the_way.get()
            if due_s > loop.time():
                await asyncio.sleep(due_s - loop.time())
            await self._flowing.wait()
            if not data:
                if self.reset_at_bytes is not None:
                    raise ConnectionResetError("the link was cut")
                self._sink.shutdown(socket.SHUT_WR)
                return
            await loop.sock_sendall(self._sink, data)
