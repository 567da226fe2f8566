"""What a body goes through on its short way: streams of a session, and a connection."""

import socket
from collections import namedtuple
from dataclasses import dataclass, field
from struct import pack
from types import SimpleNamespace
from typing import Any

BODY, UNWANTED, RESET, OTHER = object(), object(), object(), object()
DATA, MOST, STEP = 2, 40, 20
Came = namedtuple("Came", "stream_id data")


@dataclass
class Table:
    """Streams 1, with a path, and 2, without, as a session has them."""

    implementation: Any
    paused: bool = False
    opened: bool = True
    written: list[bytes] = field(default_factory=list)
    events: list[Any] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.flow = SimpleNamespace(write_paused=self.paused)
        self.path = self.implementation.BodyPath(self.written.append, self.flow)
        self.path.open = self.opened
        self.path.step_bytes = STEP
        self.session = SimpleNamespace(received=0, granted=200)
        self.streams: dict[int, Any] = {
            number: SimpleNamespace(
                peer=BODY, local=OTHER, path=path, credit=SimpleNamespace(received=0, granted=90)
            )
            for number, path in ((1, self.path), (2, None), (3, None), (4, None), (5, None))
        }
        self.streams[3].peer = OTHER
        self.streams[4].local = UNWANTED
        self.streams[5].local = RESET

    def receive(self, message: bytes, start: int = 0, later: list[Any] | None = None) -> int:
        """Where the frames ended."""
        end, due = self.implementation.receive_bodies(
            message,
            start,
            self.streams,
            self.session,
            self.events,
            Came,
            (BODY, UNWANTED, RESET),
            DATA,
            MOST,
            later,
        )
        assert [each is self.path for each in due] == [True] * (self.path.unsaid_bytes >= STEP and bool(due))
        return int(end)

    def facts(self) -> object:
        """All that can be seen of it."""
        path = self.path
        return (
            self.written,
            self.events,
            [type(event) for event in self.events],
            self.session.received,
            [stream.credit.received for stream in self.streams.values()],
            (
                path.open,
                path.waiting,
                path.fresh,
                path.last,
                path.sent_bytes,
                path.pieces,
                path.taken_bytes,
                path.unsaid_bytes,
                path.waiting_bytes,
            ),
        )


def frame(stream_id: int, data: bytes, frame_type: int = DATA) -> bytes:
    return pack(">BII", frame_type, stream_id, len(data)) + data


class Connection:
    """A socket as a transport has one: what is written waits here until it is sent."""

    def __init__(self) -> None:
        self.ours, self.theirs = socket.socketpair()
        self.ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        self.ours.setblocking(False)
        self.theirs.setblocking(False)
        self.waiting = b""
        self.got = b""

    def close(self) -> None:
        self.ours.close()
        self.theirs.close()

    def buffered_bytes(self) -> int:
        return len(self.waiting)

    def write(self, data: bytes) -> None:
        assert data
        self.waiting += data

    def send(self) -> None:
        """Send what waits, as far as there is room."""
        while self.waiting:
            try:
                self.waiting = self.waiting[self.ours.send(self.waiting) :]
            except BlockingIOError:
                return

    def read(self) -> bytes:
        """What the client has got so far."""
        while True:
            try:
                data = self.theirs.recv(65536)
            except BlockingIOError:
                return self.got
            if not data:
                return self.got
            self.got += data

    def read_all(self) -> bytes:
        """What the client gets, once all has left."""
        while self.waiting:
            self.send()
            self.read()
        return self.read()


def connect(table: Table, connection: Connection) -> None:
    """The table's path leads to the connection's socket."""
    table.path = table.implementation.BodyPath(connection.write, table.flow)
    table.path.buffered_bytes = connection.buffered_bytes
    table.path.descriptor = connection.ours.fileno()
    table.path.open = True
    table.streams[1].path = table.path
