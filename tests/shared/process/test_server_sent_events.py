import itertools
import time

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from shared.process.server_sent_events import (
    EventTooLong,
    ServerSentEvent,
    ServerSentEventReader,
    each_event,
    last_event_end,
)

_PIECES = st.sampled_from(
    [b"\r", b"\n", b"\r\n", b":", b":x", b"data: 1", b"data:  2", b"data", b"data: {}", b"event: e", b"id: 7"]
)
_STREAM = b'data: {"a": 1}\n\ndata: two\n\n: wait\n\nevent: e\r\ndata: 3\r\ndata:4\r\n\r\ndata: [DONE]\n\n'


def by_lines(data: bytes) -> list[ServerSentEvent]:
    """Events with data, line by line as the specification has it."""
    events: list[ServerSentEvent] = []
    name: str | None = None
    lines: list[bytes] = []
    for line in [*data.replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n"), b""]:
        field, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if not line:
            if lines:
                events.append(ServerSentEvent(b"\n".join(lines), name))
            name, lines = None, []
        elif field == b"data":
            lines.append(value)
        elif field == b"event":
            name = value.decode()
    return events


def with_data(events: object) -> list[ServerSentEvent]:
    return [event for event in events if event.data is not None]  # type: ignore[attr-defined]


def test_an_event_has_its_name_and_its_lines() -> None:
    events = list(each_event(b"\xef\xbb\xbfevent: e\ndata: a\ndata:b\nid: 1\n\n: said\n\ndata\n\ndata: open"))
    assert [(event.name, event.data) for event in events] == [
        ("e", b"a\nb"),
        (None, None),
        (None, b""),
        (None, b"open"),
    ]


def test_an_event_knows_its_json_and_the_end() -> None:
    first, second, *_, last = each_event(_STREAM)
    assert first.value() == {"a": 1}
    assert second.value() is None
    assert [event.is_done for event in (first, last)] == [False, True]
    assert ServerSentEvent(b"[1]").value() is ServerSentEvent(b"{").value() is None


@given(st.lists(st.integers(0, len(_STREAM)), max_size=12))
def test_events_are_the_same_wherever_the_bytes_are_cut(cuts: list[int]) -> None:
    reader, edges = ServerSentEventReader(), [0, *sorted(cuts), len(_STREAM)]
    found = [
        event for begin, end in itertools.pairwise(edges) for event in reader.feed(_STREAM[begin:end])
    ] + list(reader.finish())
    assert with_data(found) == by_lines(_STREAM)


@example(b"data: 1\r\n:\r\ndata: 1\r\n\r\n", 3)
@example(b"data: 1\n\ndata: 2\n\n", 100)
@given(st.lists(_PIECES).map(b"".join), st.integers(1, 40))
def test_events_are_those_of_their_lines(data: bytes, size: int) -> None:
    reader = ServerSentEventReader()
    pieces = [data[at : at + size] for at in range(0, len(data), size)]
    found = [event for piece in pieces for event in reader.feed(piece)]
    assert with_data([*found, *reader.finish()]) == by_lines(data)
    assert with_data(each_event(data)) == by_lines(data)


@given(st.lists(_PIECES).map(b"".join), st.lists(st.sampled_from([b":\n", b"\n", b"id\r\n", b"\r"])))
def test_many_idle_lines_change_no_event(data: bytes, idle: list[bytes]) -> None:
    assert with_data(each_event(data + b"\n\n" + b"".join(idle * 50))) == by_lines(data)


def _ends(data: bytes) -> list[int]:
    """Where events end, line end by line end."""
    ends, run, position = [], 0, 0
    while position < len(data):
        size = 2 if data[position : position + 2] == b"\r\n" else 1
        run = run + 1 if data[position : position + size] in (b"\r", b"\n", b"\r\n") else 0
        position += size
        if run >= 2 and not (position == len(data) and data.endswith(b"\n\r")):
            ends.append(position)
    return ends


@given(st.lists(_PIECES).map(b"".join))
def test_the_last_end_of_an_event_is_found_from_behind(data: bytes) -> None:
    assert last_event_end(data, 0) == max(_ends(data), default=0)


def test_an_event_that_does_not_end_is_not_kept() -> None:
    reader = ServerSentEventReader(limit_bytes=100)
    assert not list(reader.feed(b"x" * 100))
    with pytest.raises(EventTooLong, match="100 bytes"):
        reader.feed(b"x")


@pytest.mark.parametrize("unit", [b":\n\n", b"\n", b"\r", b":\n", b"\r\n", b"id:\n\n", b":", b"data\n"])
def test_no_bytes_take_long_to_read(unit: bytes) -> None:
    data, times = unit * (64 * 1024 // len(unit)), []
    for _ in range(5):
        reader = ServerSentEventReader()
        began_s = time.thread_time()
        events = list(reader.feed(data))
        times.append(time.thread_time() - began_s)
        assert len(events) <= 1
    assert min(times) < 0.015
