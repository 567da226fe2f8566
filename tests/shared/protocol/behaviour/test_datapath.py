"""The quick way of DATA frames, in and out, does what the ordinary way does."""

from random import Random

import pytest

from shared.protocol import limits
from shared.protocol.credit import PeerLimits, SendCredit, WindowSettings
from shared.protocol.errors import ErrorCode, FlowControlViolated, FrameMalformed, ProtocolError
from shared.protocol.events import DataReceived, Event
from shared.protocol.frames import (
    HEADER,
    FrameType,
    TunnelRole,
    decode_message,
    encode,
    encode_offset,
    encode_reason,
)
from shared.protocol.messages import ResponseHead
from shared.protocol.outbox import Buffer, Outbox, OutStream
from shared.protocol.session import ProtocolSession
from tests.support.session_pair import SessionPair, consumed, request_head

WINDOWS = WindowSettings(floor=600, initial=600, maximum=2400, session=3000, streams=4)
PEER = PeerLimits(16, 4096, 65536)
HEAD = ResponseHead(200, ()).to_payload()


def a_session(role: TunnelRole, random: Random | None = None) -> ProtocolSession:
    """One with four streams and credit for few bytes; with ``random`` one may be over on our side."""
    session = ProtocolSession(role, PEER, 0.0, WINDOWS)
    for stream_id in range(1, 5):
        if role is TunnelRole.GATEWAY:
            session.open_stream(request_head(), 0.0)
        else:
            session.receive_message(encode(FrameType.OPEN, stream_id, request_head().to_payload()), 0.0)
            session.send_head(stream_id, ResponseHead(200, ()))
    session.data_to_send(10**6, 0.0)
    if role is TunnelRole.GATEWAY:
        for stream_id in range(1, 5):
            session.receive_message(encode(FrameType.HEAD, stream_id, HEAD), 0.0)
    if random is not None:
        over = random.randrange(1, 5)
        match random.randrange(3):
            case 0:
                session.reset(over, ErrorCode.CANCELLED)
            case 1:
                session.end(over)
            case _:
                pass
    session.data_to_send(10**6, 0.0)
    return session


def a_frame(random: Random) -> bytes:
    """DATA mostly; now and then something that ends a stream, or the tunnel."""
    stream_id = random.randrange(1, 5)
    match random.choices(range(7), (60, 3, 2, 2, 1, 1, 1))[0]:
        case 0:
            return encode(FrameType.DATA, stream_id, random.randbytes(random.choice((1, 14, 90, 200))))
        case 1:
            return encode(FrameType.CREDIT, stream_id, encode_offset(random.randrange(10**6)))
        case 2:
            return encode(FrameType.END, stream_id)
        case 3:
            return encode(FrameType.RESET, stream_id, encode_reason(ErrorCode.CANCELLED, ""))
        case 4:
            return encode(FrameType.DATA, 5, b"never opened")
        case 5:
            size_bytes = random.choice((0, limits.DATA_PAYLOAD_BYTES + 1))
            return HEADER.pack(FrameType.DATA, stream_id, size_bytes) + bytes(size_bytes)
        case _:
            return random.choice((b"\x12", HEADER.pack(FrameType.DATA, stream_id, 9) + b"short"))


def told(session: ProtocolSession, messages: list[bytes]) -> tuple[list[Event], str, int]:
    """What a session says of messages, how it ends, and what it holds then."""
    error = ""
    try:
        for message in messages:
            session.receive_message(message, 0.0)
    except ProtocolError as problem:
        error = f"{type(problem).__name__}: {problem}"
    events = session.take_events()
    for stream_id in range(1, 5):
        consumed(session, stream_id, 100, 0.0)
    return events, error, session.held_bytes


@pytest.mark.parametrize("role", TunnelRole)
def test_frames_that_share_a_message_do_what_each_does_alone_the_ordinary_way(
    role: TunnelRole, monkeypatch: pytest.MonkeyPatch
) -> None:
    endings = set()
    for seed in range(200):
        random = Random(seed)
        frames = [a_frame(random) for _ in range(random.randint(1, 40))]
        broken = next((i for i, frame in enumerate(frames) if len(frame) in (1, 14)), len(frames))
        frames = frames[: broken + 1]  # what ends too early can only be the last
        together = told(a_session(role, Random(seed)), [b"".join(frames)])
        ordinary = a_session(role, Random(seed))
        monkeypatch.setattr(ordinary, "_receive_bodies", lambda message, start, later: start)
        assert together == told(ordinary, frames), seed
        endings.add(together[1].partition(":")[0])
    assert endings >= {"", "FlowControlViolated", "StreamStateError", "FrameMalformed", "FrameTooLarge"}


def test_every_byte_of_a_message_is_read_wherever_the_last_frame_ends(gateway: ProtocolSession) -> None:
    whole = encode(FrameType.DATA, 1, b"first") + encode(FrameType.DATA, 2, b"x")
    gateway.receive_message(whole, 0.0)
    assert gateway.take_events()[-2:] == [DataReceived(1, b"first"), DataReceived(2, b"x")]
    for cut in range(1, 10):
        with pytest.raises(FrameMalformed):
            a_session(TunnelRole.GATEWAY).receive_message(whole[:-cut], 0.0)


def test_the_sessions_credit_is_watched_though_no_stream_goes_beyond_its_own(
    gateway: ProtocolSession,
) -> None:
    gateway._received.granted = 700
    first, second = (encode(FrameType.DATA, stream_id, bytes(400)) for stream_id in (1, 2))
    with pytest.raises(FlowControlViolated, match="session"):
        gateway.receive_message(first + second, 0.0)


@pytest.fixture
def gateway() -> ProtocolSession:
    session = a_session(TunnelRole.GATEWAY)
    session.take_events()
    return session


class OrdinaryOutbox(Outbox):
    """Takes every turn the long way."""

    def _take_bodies(self, pieces: list[Buffer], left: int) -> None:
        while left > 0 and (ring := self.interactive or self._bulk):
            stream = ring.popleft()
            stream.queued = False
            left -= self._take_turn(stream, pieces)
            self.queue(stream)


def leaves(outbox: Outbox, random: Random) -> list[object]:
    """What leaves of a few streams that write, end and are dropped, in messages, and what is left then."""
    streams = [
        OutStream(stream_id, SendCredit(random.choice((200, 2000, 10**6))), random.random() < 0.5)
        for stream_id in range(1, 6)
    ]
    out: list[object] = []
    for _ in range(60):
        stream = random.choice(streams)
        match random.choices(range(7), (30, 2, 1, 1, 5, 3, 20))[0]:
            case 0 if not stream.waiting and stream.end is None:
                for _ in range(random.choice((1, 1, 1, 3))):
                    chunk = random.randbytes(random.choice((1, 200, 200, 5000, 17_000, 30_000)))
                    stream.chunks.append(chunk)
                    stream.pending_bytes += len(chunk)
                stream.waiting = stream.pending_bytes > limits.SEND_BUFFER_BYTES
            case 1:
                stream.head = encode(FrameType.HEAD, stream.stream_id, HEAD)
            case 2:
                stream.end = encode(FrameType.END, stream.stream_id)
            case 3:
                outbox.drop(stream)
            case 4:
                stream.credit.advance(stream.credit.limit + random.choice((1, 300, 40_000)))
            case 5 if outbox._session.advance(outbox._session.limit + random.choice((100, 50_000))):
                outbox.session_credit_advanced()
            case _:
                out.append(outbox.take(random.choice((1, 500, 8193, 10**6))))
        outbox.queue(stream)
        out.append((list(outbox.drained), list(outbox.ended), outbox._session.sent, sorted(outbox._blocked)))
    return [*out, [(s.pending_bytes, s.credit.sent, s.waiting, s.queued) for s in streams]]


def test_bodies_leave_as_they_would_one_ordinary_turn_after_the_other() -> None:
    blocked = 0
    for seed in range(80):
        session_bytes = Random(seed).choice((1000, 10**7))
        quick = leaves(Outbox(SendCredit(session_bytes)), Random(seed))
        ordinary = leaves(OrdinaryOutbox(SendCredit(session_bytes)), Random(seed))
        assert quick == ordinary, seed
        blocked += any(isinstance(step, tuple) and step[3] for step in quick)
        for messages in quick:
            if isinstance(messages, list) and messages and isinstance(messages[0], bytes):
                assert all(len(message) <= limits.MESSAGE_BYTES for message in messages)
                assert all(decode_message(message) for message in messages)
    assert blocked > 5


def test_what_a_turn_leaves_fills_messages_and_no_byte_is_lost_between_them() -> None:
    outbox = Outbox(SendCredit(10**7))
    expected = []
    for stream_id in range(1, 801):
        stream = OutStream(stream_id, SendCredit(1000), interactive=True)
        stream.chunks.append(bytes([stream_id % 256]) * 200)
        stream.pending_bytes = 200
        outbox.queue(stream)
        expected.append((int(FrameType.DATA), stream_id, bytes([stream_id % 256]) * 200))
    messages = outbox.take(10**6)
    assert [len(message) for message in messages[:-1]] == [limits.MESSAGE_BYTES // 209 * 209] * 2
    assert [frame for message in messages for frame in decode_message(message)[1]] == expected


def test_every_numbered_message_is_counted_whatever_is_in_it() -> None:
    pair = SessionPair()
    stream_id = pair.gateway.open_stream(request_head(), 0.0)
    pair.settle()
    pair.agent.send_head(stream_id, ResponseHead(200, ()))
    pair.settle()
    for _ in range(limits.ACK_MESSAGES):
        pair.agent.send_data(stream_id, b"token")
        pair.settle()
        assert pair.gateway.log.received == pair.agent.log.sent
    assert len(pair.agent.log._retained) < limits.ACK_MESSAGES
