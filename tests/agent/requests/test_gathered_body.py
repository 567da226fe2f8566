"""A response's body in few pieces."""

from collections.abc import Callable

from agent.requests.gathered_body import GATHERED_BYTES, MOST_S, GatheredBody
from shared.protocol.errors import LocalError, StreamHalfClosed
from tests.support.clock import ManualClock


class Stream:
    """Takes what is sent, while it is ``open``."""

    def __init__(self, gather_s: float = 0.1) -> None:
        self.sent: list[bytes] = []
        self.open = True
        self.ended: LocalError | None = None
        self.failures: list[LocalError] = []
        self.clock = ManualClock()
        self.body = GatheredBody(self.send, gather_s, self.failures.append, self.clock.call_later)

    def send(self, data: bytes) -> bool:
        if self.ended is not None:
            raise self.ended
        self.sent.append(data)
        return self.open


def test_the_first_piece_is_sent_at_once_and_later_ones_together() -> None:
    stream = Stream()
    assert stream.body.send(b"a")
    assert stream.sent == [b"a"]
    for piece in (b"b", b"c", b"d"):
        assert stream.body.send(piece)
    stream.clock.advance(0.09)
    assert stream.sent == [b"a"]
    stream.clock.advance(0.02)
    assert stream.sent == [b"a", b"bcd"]
    stream.clock.advance(1.0)
    assert stream.sent == [b"a", b"bcd"]


def test_much_does_not_wait() -> None:
    stream, piece = Stream(), b"x" * (GATHERED_BYTES // 2)
    for _ in range(3):
        stream.body.send(piece)
    assert stream.sent == [piece, piece * 2]
    stream.clock.advance(1.0)
    assert len(stream.sent) == 2


def test_nothing_waits_for_longer_than_an_agent_allows() -> None:
    stream = Stream(gather_s=3600.0)
    stream.body.send(b"a")
    stream.body.send(b"b")
    stream.clock.advance(MOST_S)
    assert stream.sent == [b"a", b"b"]


def test_what_waits_is_left_to_the_end() -> None:
    stream = Stream()
    for piece in (b"a", b"b", b"c"):
        stream.body.send(piece)
    assert stream.body.take() == b"bc"
    assert stream.body.take() == b""
    stream.clock.advance(1.0)
    assert stream.sent == [b"a"]


def test_its_engine_is_held_back_while_the_stream_takes_no_more() -> None:
    stream = Stream()
    stream.body.send(b"a")
    stream.body.send(b"b")
    stream.open = False
    stream.clock.advance(0.1)  # what was to be sent by itself filled the stream
    assert not stream.body.ready
    assert not stream.body.send(b"c")
    stream.clock.advance(1.0)
    assert stream.sent == [b"a", b"b"]
    assert not stream.body.writable()  # it is full again
    assert stream.sent == [b"a", b"b", b"c"]
    stream.open = True
    assert stream.body.writable()
    assert stream.body.send(b"d")
    stream.clock.advance(0.1)
    assert stream.sent[3:] == [b"d"]


def test_a_stream_that_ended_meanwhile_is_told_of() -> None:
    for unasked in (lambda each: each.clock.advance(0.1), lambda each: each.body.writable()):
        _ended_meanwhile(unasked)


def _ended_meanwhile(unasked: Callable[[Stream], object]) -> None:
    stream = Stream()
    stream.body.send(b"a")
    stream.body.send(b"b")
    stream.ended = StreamHalfClosed("it has ended")
    unasked(stream)
    assert stream.failures == [stream.ended]
    assert not stream.body.ready
