"""Upgraded streams and PROGRESS of two sessions, over lost tunnels and beside bulk (PROTOCOL §4.12, §5.5)."""

from random import Random

import pytest

from shared.protocol import limits
from shared.protocol.errors import ControlFrameFlood, StreamHalfClosed, StreamStateError
from shared.protocol.events import DataReceived, HeadReceived, ProgressReceived, StreamEnded
from shared.protocol.frames import FrameType, encode
from shared.protocol.messages import ResponseHead
from shared.protocol.progress import Preview, Progress
from shared.protocol.session import ProtocolSession
from shared.protocol.upgraded import CloseNotice, PieceKind, PieceReader, encode_close, encode_pieces
from tests.support.session_pair import OK, SessionPair, consumed, frames_of, request_head

UPGRADED = ResponseHead(101, ())


def upgraded(pair: SessionPair) -> int:
    head = request_head()
    head.upgrade = True
    stream_id = pair.gateway.open_stream(head, pair.now)
    pair.settle()
    pair.agent.send_head(stream_id, UPGRADED)
    assert pair.settle()[0] == [HeadReceived(stream_id, UPGRADED)]
    return stream_id


class End:
    """A program at one end: sends messages as it may, reads what comes."""

    def __init__(self, session: ProtocolSession, stream_id: int, messages: list[bytes]) -> None:
        self.session, self.stream_id = session, stream_id
        encoded = [piece for text in messages for piece in encode_pieces(PieceKind.BINARY, text, final=True)]
        self.unsent = [*encoded, encode_close(4000, "all said")]
        self.reader = PieceReader()
        self.received: list[bytes] = []
        self._message = b""
        self.ended = False

    def send(self, random: Random) -> None:
        out = self.session._streams[self.stream_id].out
        while self.unsent and not out.waiting and random.random() < 0.9:
            self.session.send_data(self.stream_id, self.unsent.pop(0))

    def take(self, events: list[object], now: float) -> None:
        for event in events:
            if isinstance(event, DataReceived):
                for piece in self.reader.feed(event.data):
                    self._message += piece.data
                    if piece.final:
                        self.received.append(self._message)
                        self._message = b""
                consumed(self.session, self.stream_id, len(event.data), now)
            self.ended = self.ended or isinstance(event, StreamEnded)


@pytest.mark.parametrize("seed", range(8))
def test_no_message_is_lost_doubled_or_changed_over_many_lost_tunnels(pair: SessionPair, seed: int) -> None:
    random = Random(seed)
    stream_id = upgraded(pair)
    said = {side: [random.randbytes(random.choice((0, 5, 300, 40_000))) for _ in range(150)] for side in "ga"}
    gateway = End(pair.gateway, stream_id, said["g"])
    agent = End(pair.agent, stream_id, said["a"])
    for _ in range(100_000):
        if gateway.reader.closed and agent.reader.closed:
            break
        for end in (gateway, agent):
            end.send(random)
            if pair.connected:
                pair.send(end.session, random.choice((100, 5_000, 100_000)))
                end.take(list(pair.deliver(end.session, random.randrange(4))), pair.now)
        pair.now += 0.01
        if random.random() < 0.02:
            pair.cut() if pair.connected else pair.reconnect()
        elif not pair.connected and random.random() < 0.2:
            pair.reconnect()
    assert gateway.received == said["a"]
    assert agent.received == said["g"]
    assert gateway.reader.closed == agent.reader.closed == CloseNotice(4000, "all said")


def test_both_ends_of_an_upgraded_stream_close_in_order(pair: SessionPair) -> None:
    stream_id = upgraded(pair)
    pair.gateway.send_data(stream_id, encode_close(1000))
    pair.gateway.end(stream_id)
    pair.settle()
    pair.agent.send_data(stream_id, encode_close(1000))
    pair.agent.end(stream_id)
    at_gateway, _ = pair.settle()
    assert StreamEnded(stream_id, None) in at_gateway
    assert pair.gateway.open_streams == pair.agent.open_streams == 0


def test_an_upgrade_that_nobody_asked_for_ends_the_session(pair: SessionPair) -> None:
    stream_id = pair.open()
    with pytest.raises(StreamStateError, match="upgraded"):
        pair.gateway.receive_message(encode(FrameType.HEAD, stream_id, UPGRADED.to_payload()), 0.0)


def test_messages_of_upgraded_streams_overtake_bulk_in_both_directions(pair: SessionPair) -> None:
    bulk, call = pair.open(streaming=False), upgraded(pair)
    pair.agent.send_head(bulk, OK)
    for session in (pair.gateway, pair.agent):
        for _ in range(2):
            session.send_data(bulk, bytes(limits.INTERACTIVE_BYTES // 2))
        pair.settle()
        session.send_data(bulk, bytes(10_000))
        session.send_data(call, b"message")
        assert frames_of(pair.send(session, 100))[0] == ("DATA", call)


def test_the_newest_progress_leaves_first_and_counts_against_no_credit(pair: SessionPair) -> None:
    stream_id = pair.open()
    pair.agent.send_head(stream_id, OK)
    pair.settle()
    while pair.agent.send_data(stream_id, bytes(10_000)):
        pass
    spent = pair.agent._send_credit.sent
    for step in range(5):
        assert pair.agent.send_progress(stream_id, Progress(step / 5), pair.now)
    assert frames_of(pair.send(pair.agent, 10)) == [("PROGRESS", stream_id)]
    assert pair.deliver(pair.gateway) == [ProgressReceived(stream_id, Progress(0.8))]
    assert pair.agent._send_credit.sent == spent


def test_a_stream_without_credit_still_says_how_far_it_is(pair: SessionPair) -> None:
    stream_id = pair.open()
    pair.agent.send_head(stream_id, OK)
    while pair.agent.send_data(stream_id, bytes(60_000)):
        pair.settle()
    pair.settle()
    assert pair.agent._streams[stream_id].out.credit.available == 0
    pair.agent.send_progress(stream_id, Progress(0.5), pair.now)
    assert ProgressReceived(stream_id, Progress(0.5)) in pair.settle()[0]


def test_progress_that_waits_is_dropped_with_its_stream(pair: SessionPair) -> None:
    stream_id = pair.answering(b"x")
    pair.agent.send_progress(stream_id, Progress(0.5), pair.now)
    pair.agent.end(stream_id)
    assert "PROGRESS" not in [name for name, _ in frames_of(pair.send(pair.agent))]
    with pytest.raises(StreamHalfClosed):
        pair.agent.send_progress(stream_id, Progress(1.0), pair.now)


def test_progress_after_the_end_is_an_error_of_the_peer(pair: SessionPair) -> None:
    stream_id = pair.open()
    frames = encode(FrameType.HEAD, stream_id, OK.to_payload()) + encode(FrameType.END, stream_id)
    pair.gateway.receive_message(frames, 0.0)
    with pytest.raises(StreamStateError):
        pair.gateway.receive_message(encode(FrameType.PROGRESS, stream_id, b"{}"), 0.0)


def test_an_agent_keeps_to_its_rate_and_its_gateway_to_a_higher_one(pair: SessionPair) -> None:
    """However the line bunches what an agent sends in the time after which a tunnel is given up."""
    stream_id = pair.open()
    large = Progress(0.5, "x" * 200, Preview("image/jpeg", bytes(limits.PREVIEW_BYTES)))
    sent = 0
    for step in range(40):
        for _ in range(20):
            if pair.agent.send_progress(stream_id, large, pair.now):
                sent += len(pair.send(pair.agent))
        pair.now += limits.SILENT_MOST_S / 20
        if step % 20 == 19:
            pair.deliver(pair.gateway)
    units = sent * (1 + len(large.to_payload()) // limits.CONTROL_FRAME_UNIT_BYTES)
    assert 0 < units <= limits.PROGRESS_UNITS + limits.PROGRESS_UNITS_PER_S * 2 * limits.SILENT_MOST_S


@pytest.mark.parametrize("size", [0, 5_000, limits.PREVIEW_BYTES])
def test_a_flood_of_progress_ends_the_session_and_holds_no_memory(pair: SessionPair, size: int) -> None:
    stream_id = pair.open()
    preview = Preview("image/jpeg", bytes(size)) if size else None
    message = encode(FrameType.PROGRESS, stream_id, Progress(0.5, "", preview).to_payload())
    units = 1 + (len(message) - 9) // limits.CONTROL_FRAME_UNIT_BYTES
    for _ in range(limits.PROGRESS_UNITS_TAKEN // units):
        pair.gateway.receive_message(message, 0.0)
        assert len(pair.gateway.take_events()) == 1
    with pytest.raises(ControlFrameFlood):
        pair.gateway.receive_message(message, 0.0)


def test_waiting_progress_is_one_frame_for_each_stream(pair: SessionPair) -> None:
    first, second = pair.open(), pair.open()
    for step in range(1000):
        pair.agent.send_progress(first, Progress(step / 1000), pair.now)
        pair.agent.send_progress(second, Progress(step / 1000), pair.now)
    assert len(pair.agent._outbox.progress) == 2
