"""Events from pieces of bytes, and a stream that goes on behind one that broke."""

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any, cast

import pytest

from gateway.cli_support.event_stream import EventReader, StreamEvent, StreamLost, follow_events
from gateway.cli_support.gateway_client import GatewayClient, GatewayFailed

TEXT = (
    b': hello\n\nid: a-1\nevent: snapshot\ndata: {"a":1}\n\n'
    b"event: delta\ndata: {}\n\n: x\n\nid: a-2\ndata:2\n\n"
)
EVENTS = [
    StreamEvent("snapshot", b'{"a":1}', "a-1"),
    StreamEvent("delta", b"{}", ""),
    StreamEvent("message", b"2", "a-2"),
]


@pytest.mark.parametrize("size", [1, 2, 7, len(TEXT)])
def test_events_are_the_same_in_pieces_of_any_size(size: int) -> None:
    reader = EventReader()
    pieces = [TEXT[start : start + size] for start in range(0, len(TEXT), size)]
    assert [event for piece in pieces for event in reader.feed(piece)] == EVENTS


def test_an_event_without_end_is_not_read_for_ever() -> None:
    reader = EventReader(limit_bytes=100)
    assert [list(reader.feed(b"data: 1234")) for _ in range(10)] == [[]] * 10
    with pytest.raises(ValueError, match="longer than 100 bytes"):
        list(reader.feed(b"5"))


class Answers:
    """A client whose streams are given: each the pieces that come, or what it fails with."""

    def __init__(self, *answers: list[bytes] | GatewayFailed, kind: str = "text/event-stream") -> None:
        self.answers = list(answers)
        self.asked: list[tuple[str, Mapping[str, str] | None]] = []
        self.headers = {"content-type": kind}
        self.pieces: list[bytes] = []

    @contextlib.contextmanager
    def open(self, method: str, path: str, *, timeout_s: float, more: Any = None) -> Iterator["Answers"]:
        self.asked.append((path, more))
        answer = self.answers.pop(0)
        if isinstance(answer, GatewayFailed):
            raise answer
        self.pieces = answer
        yield self

    def read1(self, size: int) -> bytes:
        return self.pieces.pop(0) if self.pieces else b""


def followed(answers: Answers, **more: Any) -> list[StreamEvent | StreamLost]:
    """What is told until all answers were asked for."""
    found = []
    for each in follow_events(
        cast(GatewayClient, answers), "/e", pause=lambda s: not answers.answers, **more
    ):
        found.append(each)
    return found


def test_a_stream_that_broke_off_is_asked_for_behind_what_it_brought() -> None:
    answers = Answers([TEXT[:60], TEXT[60:]], GatewayFailed("away", 502), [b"id: a-3\ndata: 3\n\n"])
    found = followed(answers)
    assert [each for each in found if isinstance(each, StreamEvent)] == [
        *EVENTS,
        StreamEvent("message", b"3", "a-3"),
    ]
    lost = [each for each in found if isinstance(each, StreamLost)]
    assert [(each.why, each.status) for each in lost] == [
        ("the stream ended", None),
        ("away", 502),
        ("the stream ended", None),
    ]
    assert 0.25 <= lost[0].again_s <= 0.5 <= lost[1].again_s <= 1.0
    assert answers.asked == [("/e", None), ("/e", {"last-event-id": "a-2"}), ("/e", {"last-event-id": "a-2"})]


def test_again_the_path_may_be_another() -> None:
    answers = Answers([b"data: 1\n\n"], [b"data: 2\n\n"])
    followed(answers, again=lambda: "/e?n=0")
    assert [path for path, _ in answers.asked] == ["/e", "/e?n=0"]


@pytest.mark.parametrize(
    ("answers", "said"),
    [
        (Answers(GatewayFailed("This takes the role 'viewer'.", 403)), "takes the role"),
        (Answers([b"<html>"], kind="text/html"), "no gateway"),
        (Answers([]), "the stream ended"),
    ],
)
def test_a_stream_that_cannot_be_had_at_first_is_an_error(answers: Answers, said: str) -> None:
    with pytest.raises(GatewayFailed, match=said):
        followed(answers)
    assert len(answers.asked) == 1
