"""What the head of a response says of its body."""

import pytest

from gateway.dispatch.request_heads import comes_by_and_by, is_event_stream
from shared.protocol.followed import FOLLOWED
from shared.protocol.messages import Headers

_DATE = ("date", "Tue, 24 Nov 2026 12:00:00 GMT")


@pytest.mark.parametrize(
    ("headers", "stream"),
    [
        ((_DATE, ("content-type", "text/event-stream")), True),
        ((("content-type", "Text/Event-Stream; charset=utf-8"), _DATE), True),
        ((("content-type", "text/event-stream"), ("content-encoding", "identity")), True),
        ((("content-type", "text/event-stream"), ("content-encoding", "gzip")), False),
        ((_DATE, ("content-type", "application/json")), False),
        ((_DATE, ("content-type", "application/json; charset=utf-8")), False),
        ((("content-type", "application/json"), ("content-type", "text/event-stream")), False),
        ((_DATE,), False),
        ((), False),
    ],
)
def test_a_body_is_an_event_stream_if_nothing_else_is_said_of_it(headers: Headers, stream: bool) -> None:
    assert is_event_stream(headers) is stream
    assert comes_by_and_by(headers) is stream


def test_an_answer_that_is_followed_comes_by_and_by() -> None:
    headers = (_DATE, ("content-type", FOLLOWED))
    assert comes_by_and_by(headers)
    assert not is_event_stream(headers)
