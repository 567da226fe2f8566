"""Events of an engine are read within bounds."""

import pytest

from gateway.dispatch.recovery import SpliceFailed
from gateway.dispatch.recovery.events import EVENT_BYTES, EVENT_MARKS, ServerEvent, ServerEventReader


@pytest.mark.parametrize(
    "unit", [b"data:{}\n\n", b'data: {"choices":[]}\n\n', b"data\r\r", b"id:1\ndata:\n\n"]
)
def test_many_events_that_are_almost_empty_are_no_continuation(unit: bytes) -> None:
    reader = ServerEventReader()
    with pytest.raises(SpliceFailed, match="too many"):
        list(reader.feed(unit * 4096))


def test_events_with_a_token_each_are_read_however_many_come_at_once() -> None:
    unit = b'data: {"id":"c","choices":[{"index":0,"delta":{"content":"a"}}]}\n\n'
    assert len(list(ServerEventReader().feed(unit * 4096))) == 4096
    assert len(list(ServerEventReader().feed(b":\n\n" * 40_000 + unit))) == 2, "comments count once"


def test_an_event_that_does_not_end_is_read_up_to_a_length() -> None:
    reader = ServerEventReader()
    list(reader.feed(b"data: " + b"x" * (EVENT_BYTES - 6)))
    with pytest.raises(SpliceFailed, match="too long"):
        list(reader.feed(b"x"))


def test_an_event_of_more_values_than_any_engine_sends_is_not_parsed() -> None:
    assert ServerEvent(None, b'{"a":[%b0]}' % (b"0," * (EVENT_MARKS - 9))).value() is not None
    assert ServerEvent(None, b'{"a":[%b0]}' % (b"0," * EVENT_MARKS)).value() is None
