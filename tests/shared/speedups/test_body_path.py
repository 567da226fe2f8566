from collections.abc import Iterator
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from shared.speedups import body_path, native
from tests.shared.speedups.bodies import MOST, Came, Connection, Table, connect, frame
from tests.shared.speedups.implementations import compares, each_implementation

implementation = each_implementation(body_path)


def test_whole_events_are_written_as_one_chunk(implementation: ModuleType) -> None:
    table = Table(implementation)
    message = frame(1, b"data: 1\n\n") + frame(1, b"data: 2\r\n\r\n")
    assert table.receive(message) == len(message)
    assert table.written == [b"14\r\ndata: 1\n\ndata: 2\r\n\r\n\r\n"]
    assert table.events == []
    assert (table.path.pieces, table.path.taken_bytes, table.path.unsaid_bytes) == (2, 20, 20)
    assert table.path.fresh == [b"data: 1\n\n", b"data: 2\r\n\r\n"]
    assert table.path.last == b"\r\n\r\n"
    assert (table.session.received, table.streams[1].credit.received) == (20, 20)


def test_nothing_overtakes_a_piece_that_goes_the_ordinary_way(implementation: ModuleType) -> None:
    table = Table(implementation)
    table.receive(frame(1, b"a\n\n") + frame(1, b"half of") + frame(1, b" b\n\n") + frame(2, b"other"))
    assert table.written == [b"3\r\na\n\n\r\n"]
    assert table.events == [(1, b"half of"), (1, b" b\n\n"), (2, b"other")]
    assert all(type(event) is Came for event in table.events)
    assert not table.path.open


def test_what_came_together_is_written_together(implementation: ModuleType) -> None:
    table, later = Table(implementation), []  # type: ignore[var-annotated]
    for number in range(3):
        table.receive(frame(1, b"data: %d\n\n" % number) + frame(2, b"other"), later=later)
    assert (table.written, later) == ([], [table.path])
    assert table.path.waiting == [b"data: 0\n\n", b"data: 1\n\n", b"data: 2\n\n"]
    assert implementation.write_bodies(later) == [table.path]
    assert table.written == [b"1b\r\ndata: 0\n\ndata: 1\n\ndata: 2\n\n\r\n"]
    assert (later, table.path.waiting) == ([], [])
    table.path.unsaid_bytes = 0
    table.receive(frame(1, b"a\n\n"), later=later)
    assert implementation.write_bodies(later) == []


def test_what_is_put_there_by_a_call_meanwhile_keeps_its_place(implementation: ModuleType) -> None:
    table, later = Table(implementation), []  # type: ignore[var-annotated]
    table.receive(frame(1, b"a\n\n"), later=later)
    table.path.waiting.append(b"b\n\n")
    table.receive(frame(1, b"c\n\n"), later=later)
    implementation.write_bodies(later)
    assert table.written == [b"9\r\na\n\nb\n\nc\n\n\r\n"]


def test_of_a_long_body_not_all_is_written_later(implementation: ModuleType) -> None:
    table, later = Table(implementation), []  # type: ignore[var-annotated]
    table.session.granted = table.streams[1].credit.granted = 1_000_000
    piece = b"x" * (MOST - 2) + b"\n\n"
    for _ in range(3):
        table.receive(frame(1, piece) * 512, later=later)
    assert [len(data) for data in table.written] == [512 * 2 * MOST + 8]
    assert table.path.waiting_bytes == 512 * MOST
    implementation.write_bodies(later)
    assert [len(data) for data in table.written] == [512 * 2 * MOST + 8, 512 * MOST + 8]


def test_a_connection_that_fills_meanwhile_is_not_overtaken(
    implementation: ModuleType, connection: Connection
) -> None:
    table, later = Table(implementation), []  # type: ignore[var-annotated]
    connect(table, connection)
    table.receive(frame(1, b"a\n\n"), later=later)
    connection.write(b"head ")
    implementation.write_bodies(later)
    assert connection.read_all() == b"head 3\r\na\n\n\r\n"


def test_a_write_that_fails_later_leaves_the_others_waiting(implementation: ModuleType) -> None:
    table, later = Table(implementation), []  # type: ignore[var-annotated]

    def fail(data: bytes) -> None:
        raise OSError("gone")

    table.streams[2].path = broken = implementation.BodyPath(fail, table.flow)
    broken.open = True
    table.receive(frame(2, b"a\n\n") + frame(1, b"b\n\n"), later=later)
    with pytest.raises(OSError, match="gone"):
        implementation.write_bodies(later)
    assert (later, table.path.waiting) == ([], [b"b\n\n"])


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


@pytest.fixture
def connection() -> Iterator[Connection]:
    made = Connection()
    yield made
    made.close()


@compares
def test_what_nothing_waits_before_is_sent_at_once(connection: Connection) -> None:
    table = Table(native)
    connect(table, connection)
    table.receive(frame(1, b"a\n\n") + frame(1, b"b\n\n"))
    assert table.path.take(b"c\n\n")
    table.path.flush()
    assert connection.waiting == b""
    assert connection.read() == b"6\r\na\n\nb\n\n\r\n3\r\nc\n\n\r\n"


def test_nothing_overtakes_what_waits_in_the_transport(
    implementation: ModuleType, connection: Connection
) -> None:
    table = Table(implementation)
    connect(table, connection)
    connection.write(b"head ")
    table.receive(frame(1, b"a\n\n"))
    assert connection.read() == b""
    assert connection.read_all() == b"head 3\r\na\n\n\r\n"
    table.receive(frame(1, b"b\n\n"))
    assert connection.read_all() == b"head 3\r\na\n\n\r\n3\r\nb\n\n\r\n"


def test_nothing_overtakes_what_others_write_before_the_path_is_open_again(
    implementation: ModuleType, connection: Connection
) -> None:
    table = Table(implementation)
    connect(table, connection)
    table.receive(frame(1, b"a\n\n"))
    _write_otherwise(table, connection, b"other ")
    table.receive(frame(1, b"b\n\n"))
    assert connection.read_all() == b"3\r\na\n\n\r\nother 3\r\nb\n\n\r\n"


def _write_otherwise(table: Table, connection: Connection, data: bytes) -> None:
    """As whoever shares the connection with a path does."""
    was_open, table.path.open = table.path.open, False
    connection.write(data)
    table.path.open = was_open


def test_what_a_full_socket_does_not_take_goes_to_the_transport(
    implementation: ModuleType, connection: Connection
) -> None:
    table, expected = Table(implementation), b""
    connect(table, connection)
    table.session.granted = table.streams[1].credit.granted = 1_000_000
    for number in range(2000):
        piece = b"event %d\n\n" % number
        table.receive(frame(1, piece))
        expected += b"%x\r\n%b\r\n" % (len(piece), piece)
    assert connection.waiting
    assert connection.read_all() == expected
    assert table.events == []


def test_a_piece_larger_than_the_socket_s_room_arrives_whole(
    implementation: ModuleType, connection: Connection
) -> None:
    table = Table(implementation)
    connect(table, connection)
    piece = b"x" * 300_000 + b"\n\n"
    assert table.path.take(piece)
    table.path.flush()
    assert connection.read_all() == b"%x\r\n%b\r\n" % (len(piece), piece)


def test_a_connection_that_is_gone_is_the_transport_s_to_deal_with(
    implementation: ModuleType, connection: Connection
) -> None:
    table = Table(implementation)
    connect(table, connection)
    connection.theirs.close()
    table.receive(frame(1, b"a\n\n"))
    assert connection.waiting == b"3\r\na\n\n\r\n"
    table.path.descriptor = -1
    table.receive(frame(1, b"b\n\n"))
    assert connection.waiting == b"3\r\na\n\n\r\n3\r\nb\n\n\r\n"


@pytest.mark.parametrize("size_bytes", [2, 9, 10, 15, 16, 255, 256, 4086, 4087, 4088, 4095, 4096, 70_000])
def test_a_chunk_begins_with_its_size(
    implementation: ModuleType, connection: Connection, size_bytes: int
) -> None:
    table, expected = Table(implementation), b""
    for step in ("transport", "socket"):
        if step == "socket":
            connect(table, connection)
        piece = b"x" * (size_bytes - 2) + b"\n\n"
        assert table.path.take(piece)
        table.path.flush()
        expected = b"%x\r\n%b\r\n" % (size_bytes, piece)
    assert table.written == [expected]
    assert connection.read_all() == expected


@compares
def test_nothing_is_sent_to_a_descriptor_that_was_taken_back(connection: Connection) -> None:
    table = Table(native)
    connect(table, connection)
    table.path.descriptor = -1
    table.receive(frame(1, b"a\n\n"))
    assert (connection.read(), connection.waiting) == (b"", b"3\r\na\n\n\r\n")


@compares
def test_what_could_not_be_written_for_another_s_error_waits() -> None:
    for implementation in (body_path, native):
        table = Table(implementation)

        def fail(data: bytes) -> None:
            raise OSError("gone")

        broken = implementation.BodyPath(fail, table.flow)
        broken.open = True
        table.streams[2].path = broken
        with pytest.raises(OSError, match="gone"):
            table.receive(frame(2, b"a\n\n") + frame(1, b"b\n\n") + frame(1, b"c\n\n"))
        assert table.path.waiting == [b"b\n\n", b"c\n\n"]
        table.path.flush()
        assert table.written == [b"6\r\nb\n\nc\n\n\r\n"]


@dataclass
class Slotted:
    """A stream whose attributes are slots, as a session's are."""

    __slots__ = ("credit", "local", "path", "peer")
    peer: object
    local: object
    credit: Any
    path: Any


def test_streams_with_slots_and_credit_of_its_own_class_are_found_as_well(implementation: ModuleType) -> None:
    table = Table(implementation)
    for number, stream in table.streams.items():
        credit = implementation.ReceivedBytes()
        credit.received, credit.granted = 0, 90
        table.streams[number] = Slotted(stream.peer, stream.local, credit, stream.path)
    table.session = implementation.ReceivedBytes()
    table.session.received, table.session.granted = 0, 200
    message = frame(1, b"a\n\n") + frame(2, b"b")
    assert table.receive(message + frame(4, b"unwanted")) == len(message)
    assert table.receive(frame(5, b"reset")) == table.receive(frame(3, b"other")) == 0
    assert (table.written, table.events) == ([b"3\r\na\n\n\r\n"], [(2, b"b")])
    assert (table.session.received, table.streams[1].credit.received) == (4, 3)
    table.streams[1].credit.granted = 5
    assert table.receive(frame(1, b"b\n\n")) == 0
    del table.streams[1].peer
    with pytest.raises(AttributeError):
        table.receive(frame(1, b"b\n\n"))


_PIECES = st.sampled_from([b"a\n\n", b"b\r\n\r\n", b"c", b"\n\n", b"", b"d" * 15 + b"\n\n", b"e" * 41])
_FRAMES = st.builds(
    frame, st.sampled_from([1, 1, 1, 2, 2, 3, 4, 5, 9]), _PIECES, st.sampled_from([2] * 9 + [1])
)


@compares
@given(
    st.lists(st.lists(st.one_of(_FRAMES, st.binary(max_size=5)), max_size=8).map(b"".join), max_size=3),
    st.booleans(),
    st.integers(0, 3),
    st.booleans(),
)
@example([frame(1, b"x" * 30 + b"\n\n") * 3], False, 0, False)
def test_both_do_alike(messages: list[bytes], paused: bool, start: int, together: bool) -> None:
    tables = [Table(body_path, paused), Table(native, paused)]
    lists: list[list[Any] | None] = [[], []] if together else [None, None]
    for message in messages:
        at = min(start, len(message))
        ends = [table.receive(message, at, later) for table, later in zip(tables, lists, strict=True)]
        assert ends[0] == ends[1]
        assert tables[0].facts() == tables[1].facts()
    for implementation, later in zip((body_path, native), lists, strict=True):
        if later is not None:
            implementation.write_bodies(later)
    assert tables[0].facts() == tables[1].facts()


@compares
@given(
    st.lists(
        st.one_of(
            st.lists(_FRAMES, max_size=5).map(b"".join),
            st.sampled_from(["send", "wait", "call", "flush", "pause", "detach"]),
        ),
        max_size=12,
    )
)
def test_a_client_gets_the_same_from_both_whatever_the_transport_does(steps: list[bytes | str]) -> None:
    got, facts = [], []
    for implementation in (body_path, native):
        table, connection = Table(implementation), Connection()
        try:
            connect(table, connection)
            for step in steps:
                _do(step, table, connection)
            table.path.flush()
            got.append(connection.read_all())
            facts.append(table.facts())
        finally:
            connection.close()
    assert got[0] == got[1]
    assert facts[0] == facts[1]


def _do(step: bytes | str, table: Table, connection: Connection) -> None:
    if isinstance(step, bytes):
        table.flow.write_paused = table.flow.write_paused and connection.buffered_bytes() > 0
        table.receive(step)
    elif step == "send":
        connection.send()
    elif step == "wait":
        _write_otherwise(table, connection, b"other")
    elif step == "call":
        table.flow.write_paused = False
        table.path.take(b"called\n\n")
    elif step == "flush":
        table.path.flush()
    elif step == "detach":
        table.path.descriptor = -1
    else:
        _write_otherwise(table, connection, b"much")
        table.flow.write_paused = True
