from collections import namedtuple
from dataclasses import dataclass, field
from struct import pack
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from shared.speedups import NATIVE, body_path, native

IMPLEMENTATIONS = [pytest.param(body_path, id="python")]
if NATIVE:
    IMPLEMENTATIONS.append(pytest.param(native, id="native"))
compares = pytest.mark.skipif(not NATIVE, reason="the native functions were not built")

BODY, UNWANTED, RESET, OTHER = object(), object(), object(), object()
DATA, MOST, STEP = 2, 40, 20
Came = namedtuple("Came", "stream_id data")


@pytest.fixture(params=IMPLEMENTATIONS)
def implementation(request: pytest.FixtureRequest) -> ModuleType:
    found: ModuleType = request.param
    return found


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

    def receive(self, message: bytes, start: int = 0) -> int:
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
            STEP,
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
            ),
        )


def frame(stream_id: int, data: bytes, frame_type: int = DATA) -> bytes:
    return pack(">BII", frame_type, stream_id, len(data)) + data


def test_whole_events_are_written_as_one_chunk(implementation: ModuleType) -> None:
    table = Table(implementation)
    message = frame(1, b"data: 1\n\n") + frame(1, b"data: 2\r\n\r\n")
    assert table.receive(message) == len(message)
    assert table.written == [b"14\r\ndata: 1\n\ndata: 2\r\n\r\n\r\n"]
    assert table.events == []
    assert (table.path.pieces, table.path.taken_bytes, table.path.unsaid_bytes) == (2, 20, 20)
    assert table.path.fresh == [b"data: 1\n\n", b"data: 2\r\n\r\n"]
    assert table.path.last == b"data: 1\n\ndata: 2\r\n\r\n"
    assert (table.session.received, table.streams[1].credit.received) == (20, 20)


def test_nothing_overtakes_a_piece_that_goes_the_ordinary_way(implementation: ModuleType) -> None:
    table = Table(implementation)
    table.receive(frame(1, b"a\n\n") + frame(1, b"half of") + frame(1, b" b\n\n") + frame(2, b"other"))
    assert table.written == [b"3\r\na\n\n\r\n"]
    assert table.events == [(1, b"half of"), (1, b" b\n\n"), (2, b"other")]
    assert all(type(event) is Came for event in table.events)
    assert not table.path.open


@pytest.mark.parametrize(("paused", "opened"), [(True, True), (False, False)])
def test_a_path_that_is_not_free_takes_nothing(
    implementation: ModuleType, paused: bool, opened: bool
) -> None:
    table = Table(implementation, paused, opened)
    table.receive(frame(1, b"a\n\n"))
    assert (table.written, table.events) == ([], [(1, b"a\n\n")])


def test_pieces_that_wait_already_are_written_by_whoever_put_them_there(implementation: ModuleType) -> None:
    table = Table(implementation)
    assert table.path.take(b"a\n\n")
    table.receive(frame(1, b"b\n\n"))
    assert table.written == []
    table.path.flush()
    table.path.flush()
    assert table.written == [b"6\r\na\n\nb\n\n\r\n"]


@pytest.mark.parametrize(
    "other",
    [
        frame(1, b"x", frame_type=3),
        frame(9, b"x"),
        frame(3, b"x"),
        frame(4, b"x"),
        frame(5, b"x"),
        frame(2, b""),
        frame(2, b"x" * (MOST + 1)),
        frame(2, b"cut off")[:-1],
        frame(2, b"x")[:9],
        b"",
    ],
)
def test_it_stops_before_a_frame_that_somebody_has_to_look_at(
    implementation: ModuleType, other: bytes
) -> None:
    table = Table(implementation)
    before = frame(2, b"before")
    assert table.receive(b"skipped" + before + other, 7) == 7 + len(before)
    assert table.events == [(2, b"before")]


def test_credit_is_not_exceeded(implementation: ModuleType) -> None:
    table = Table(implementation)
    piece = frame(2, b"x" * 40)
    assert table.receive(piece * 3) == 2 * len(piece)
    assert table.streams[2].credit.received == 80
    table.session.received = 190
    assert table.receive(frame(1, b"123456789\n\n")) == 0


def test_a_write_that_fails_is_told_and_everything_is_counted(implementation: ModuleType) -> None:
    table = Table(implementation)

    def fail(data: bytes) -> None:
        raise OSError("gone")

    table.path = table.streams[1].path = implementation.BodyPath(fail, table.flow)
    table.path.open = True
    with pytest.raises(OSError, match="gone"):
        table.receive(frame(1, b"a\n\n"))
    assert (table.session.received, table.streams[1].credit.received) == (3, 3)


_PIECES = st.sampled_from([b"a\n\n", b"b\r\n\r\n", b"c", b"\n\n", b"", b"d" * 15 + b"\n\n", b"e" * 41])
_FRAMES = st.builds(
    frame, st.sampled_from([1, 1, 1, 2, 2, 3, 4, 5, 9]), _PIECES, st.sampled_from([2] * 9 + [1])
)


@compares
@given(
    st.lists(st.lists(st.one_of(_FRAMES, st.binary(max_size=5)), max_size=8).map(b"".join), max_size=3),
    st.booleans(),
    st.integers(0, 3),
)
@example([frame(1, b"x" * 30 + b"\n\n") * 3], False, 0)
def test_both_do_alike(messages: list[bytes], paused: bool, start: int) -> None:
    tables = [Table(body_path, paused), Table(native, paused)]
    for message in messages:
        ends = [table.receive(message, min(start, len(message))) for table in tables]
        assert ends[0] == ends[1]
        assert tables[0].facts() == tables[1].facts()
