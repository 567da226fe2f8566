"""Events of an engine are read within bounds."""

import pytest

from gateway.dispatch.recovery import SpliceFailed
from gateway.dispatch.recovery.events import EVENT_BYTES, EVENT_MARKS, ContinuationEvents


@pytest.mark.parametrize(
    "unit", [b"data:{}\n\n", b'data: {"choices":[]}\n\n', b"data\r\r", b"id:1\ndata:\n\n"]
)
def test_many_events_that_are_almost_empty_are_no_continuation(unit: bytes) -> None:
    reader = ContinuationEvents()
    with pytest.raises(SpliceFailed, match="too many"):
        list(reader.feed(unit * 4096))


def test_events_with_a_token_each_are_read_however_many_come_at_once() -> None:
    unit = b'data: {"id":"c","choices":[{"index":0,"delta":{"content":"a"}}]}\n\n'
    assert len(list(ContinuationEvents().feed(unit * 4096))) == 4096
    assert len(list(ContinuationEvents().feed(b":\n\n" * 40_000 + unit))) == 2, "comments count once"


def test_comments_in_a_row_are_one_and_end_no_event() -> None:
    events = ContinuationEvents().feed(b"data: 1\n:\n:\n:\n:\ndata: 2\n\n:\n\n:\n\n:\n\n:\n\n")
    assert [event.data for event in events] == [b"1\n2", None]


def test_an_event_that_does_not_end_is_read_up_to_a_length() -> None:
    reader = ContinuationEvents()
    list(reader.feed(b"data: " + b"x" * (EVENT_BYTES - 6)))
    with pytest.raises(SpliceFailed, match="too long"):
        list(reader.feed(b"x"))


def test_an_event_of_more_values_than_any_engine_sends_is_not_parsed() -> None:
    few, many = (b'data: {"a":[%b0]}\n\n' % (b"0," * count) for count in (EVENT_MARKS - 9, EVENT_MARKS))
    (event,) = ContinuationEvents().feed(few)
    assert event.value() is not None
    with pytest.raises(SpliceFailed, match="too many values"):
        list(ContinuationEvents().feed(many))
