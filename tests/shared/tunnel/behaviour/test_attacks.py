"""What a peer may try with a tunnel, and what happens at awkward moments. In memory, without real time."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import repeat

import pytest
from websockets.frames import Frame as WebSocketFrame
from websockets.frames import Opcode

from shared.protocol import limits
from shared.protocol.errors import (
    ControlFrameFlood,
    ErrorCode,
    FrameMalformed,
    HeadTooLarge,
    StreamLimitExceeded,
    StreamStateError,
    TunnelClosed,
)
from shared.protocol.frames import FrameType, encode, encode_offset, encode_reason
from shared.protocol.messages import ResponseHead
from shared.speedups import NATIVE, websocket_frames
from shared.tunnel import framing
from shared.tunnel.accept import NEW_S
from tests.support.lines import Line, LineAcceptor, ManualLoop
from tests.support.session_pair import SessionPair
from tests.support.tunnels import Recorder, request_head


@pytest.fixture(autouse=True, params=["core", "python", *(["native"] if NATIVE else [])])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Messages go through the WebSocket library's core, or the short way, in Python and in C."""
    if request.param == "core":
        monkeypatch.setattr(framing, "_between_frames", lambda websocket: False)
    elif request.param == "python":
        monkeypatch.setattr(framing, "cut_messages", websocket_frames.cut_messages)
        monkeypatch.setattr(framing, "frame_messages", websocket_frames.frame_messages)


@pytest.fixture
def loop() -> Iterator[ManualLoop]:
    loop = ManualLoop()
    yield loop
    loop.close()
    assert loop.failures == []


def joined(loop: ManualLoop) -> tuple[LineAcceptor, Line, Recorder]:
    acceptor, listener = LineAcceptor(loop), Recorder()
    line = Line(loop, acceptor, listener)
    line.pump()
    assert line.welcomed
    loop.advance(NEW_S)
    line.gateway.data_received(b"")
    loop.settle()  # from now on what comes is read at once
    return acceptor, line, listener


def raw(opcode: Opcode, data: bytes, fin: bool = True) -> bytes:
    """A WebSocket frame as an agent sends it."""
    return WebSocketFrame(opcode, data, fin).serialize(mask=True)


def test_a_session_is_joined_and_cut_without_a_socket(loop: ManualLoop) -> None:
    acceptor, line, listener = joined(loop)
    assert acceptor.endpoint is not None
    client = Recorder()
    acceptor.endpoint.open(request_head(), client)
    line.pump()
    line.agent_end.lose()
    line.pump()
    assert client.names() == ["suspended"]
    assert listener.names() == ["open", "suspended", "session_suspended"]
    again = Line(loop, acceptor, listener, ("session-1", line.agent.endpoint))
    again.pump()
    assert again.agent.resumed
    assert client.names() == ["suspended", "resumed"]


def test_pings_of_a_peer_that_does_not_read_take_no_memory(loop: ManualLoop) -> None:
    _, line, _ = joined(loop)
    for _ in range(limits.CONTROL_FRAMES_BURST // 10):
        line.gateway.data_received(raw(Opcode.PING, bytes(120)) * 10)
    assert len(line.gateway_end.buffer) <= 4 * limits.SOCKET_BUFFER_BYTES
    assert line.gateway.open
    loop.settle()


def flood(line: Line, piece: bytes, rounds: int = 1000) -> int:
    """Sends ``piece`` again and again until the gateway closes; how often it was taken."""
    for taken in range(rounds):
        if not line.gateway.open:
            return taken
        line.gateway.data_received(piece)
    return rounds


@pytest.mark.parametrize(
    ("first", "frame"),
    [
        (b"", raw(Opcode.PING, b"")),
        (b"", raw(Opcode.PONG, b"x" * 100)),
        (raw(Opcode.BINARY, b"", fin=False), raw(Opcode.CONT, b"", fin=False)),
        (raw(Opcode.BINARY, b"\x20", fin=False), raw(Opcode.CONT, b"x", fin=False)),
    ],
    ids=["pings", "pongs", "empty pieces", "pieces of one byte"],
)
def test_a_flood_of_websocket_frames_without_a_body_ends_the_tunnel(
    loop: ManualLoop, first: bytes, frame: bytes
) -> None:
    _, line, _ = joined(loop)
    line.gateway.data_received(first)
    earned = limits.CONTROL_FRAMES_BURST + NEW_S * limits.CONTROL_FRAMES_PER_S
    assert flood(line, frame * 100) <= earned // 100 + 1
    loop.settle()


def test_one_read_full_of_pings_is_not_parsed_to_its_end(
    loop: ManualLoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, line, _ = joined(loop)
    parsed: list[int] = []
    receive = line.gateway._websocket.receive_data

    def watched(data: bytes) -> None:
        parsed.append(len(data))
        receive(data)

    monkeypatch.setattr(line.gateway._websocket, "receive_data", watched)
    line.gateway.data_received(raw(Opcode.PING, b"") * 40_000)
    assert parsed == [limits.INPUT_SLICE_BYTES]
    assert not line.gateway.open
    loop.settle()


def test_websocket_frames_at_a_moderate_rate_go_on_for_ever(loop: ManualLoop) -> None:
    _, line, _ = joined(loop)
    for _ in range(10 * limits.CONTROL_FRAMES_BURST // 100):
        line.gateway.data_received(raw(Opcode.PING, b"") * 100)
        line.gateway_end.buffer.clear()
        loop.advance(1.0)
    assert line.gateway.open


SMALL_STATE = b'{"status":"READY"}'


def taken_before_a_flood(pair: SessionPair, messages: Iterable[bytes]) -> int:
    """How many of the messages the gateway takes, all at once, before it calls them a flood."""
    for taken, message in enumerate(messages):
        try:
            pair.gateway.receive_message(message, 0.0)
        except ControlFrameFlood:
            return taken
    raise AssertionError("all of them were taken")


@pytest.mark.parametrize(
    "frame",
    [
        encode(FrameType.SLOTS, 0, b'{"d1":1}') + encode(FrameType.SLOTS, 0, b'{"d1":0}'),
        encode(FrameType.STATE, 0, SMALL_STATE),
        encode(FrameType.PING, 0, encode_offset(1)),
        encode(FrameType.ACK, 0, encode_offset(0)),
        encode(FrameType.CREDIT, 0, encode_offset(1)),
        encode(FrameType.RESULT, 0, b'{"id":1}'),
    ],
    ids=["slots", "state", "ping", "ack", "credit", "result"],
)
def test_a_flood_of_control_frames_ends_the_session(frame: bytes) -> None:
    most = limits.CONTROL_FRAMES_BURST
    assert taken_before_a_flood(SessionPair(), repeat(frame, most + 1)) <= most
    patient = SessionPair()
    for second in range(100):
        patient.gateway.receive_message(frame * (limits.CONTROL_FRAMES_PER_S // 2), float(second))


def test_slots_that_change_with_every_request_are_no_flood() -> None:
    """An engine with several models says anew what each may get whenever a request comes or goes."""
    pair = SessionPair()
    levels = {f"ollama/one-of-its-many-models:{number}": 4 for number in range(40)}
    for _ in range(limits.CONTROL_FRAMES_BURST // 4):
        stream_id = pair.gateway.open_stream(request_head(), pair.now)
        pair.agent.send_slots(levels)
        pair.settle()
        pair.agent.reset(stream_id, ErrorCode.REFUSED)
        pair.gateway.reset(stream_id, ErrorCode.CANCELLED)
        pair.agent.send_slots(levels)
        pair.settle()
    assert not pair.gateway.open_streams


def test_credit_that_grows_by_single_bytes_is_a_flood_and_by_windows_is_none() -> None:
    first = SessionPair().gateway._send_credit.limit

    def credits_by(step_bytes: int, count: int) -> list[bytes]:
        offsets = [first + number * step_bytes for number in range(1, count + 1)]
        return [encode(FrameType.CREDIT, 0, encode_offset(offset)) for offset in offsets]

    most = limits.CONTROL_FRAMES_BURST
    assert taken_before_a_flood(SessionPair(), credits_by(1, most + 1)) == most
    pair = SessionPair()
    for message in credits_by(limits.CREDIT_STEP_BYTES, 2 * most):
        pair.gateway.receive_message(message, 0.0)
    assert pair.gateway._send_credit.limit == first + 2 * most * limits.CREDIT_STEP_BYTES


def test_an_agent_earns_control_frames_with_the_requests_it_is_given() -> None:
    pair = SessionPair()
    slots = encode(FrameType.SLOTS, 0, b'{"d1":1}')
    assert taken_before_a_flood(pair, repeat(slots, 5000)) == limits.CONTROL_FRAMES_BURST
    for _ in range(3):
        pair.gateway.open_stream(request_head(), pair.now)
    assert taken_before_a_flood(pair, repeat(slots, 5000)) == 3 * limits.CONTROL_FRAMES_PER_STREAM


def test_a_large_state_costs_more_than_a_small_one() -> None:
    large = SMALL_STATE[:-1] + b" " * 12_000 + b"}"
    units = 1 + len(large) // limits.CONTROL_FRAME_UNIT_BYTES
    taken = taken_before_a_flood(SessionPair(), repeat(encode(FrameType.STATE, 0, large), 1000))
    assert taken == limits.CONTROL_FRAMES_BURST // units


def test_slots_cost_no_more_when_they_are_longer() -> None:
    long = encode(FrameType.SLOTS, 0, b'{"d1":1' + b" " * 40_000 + b"}")
    taken = taken_before_a_flood(SessionPair(), repeat(long, 1000))
    assert taken == limits.CONTROL_FRAMES_BURST // limits.SLOTS_UNITS


def test_a_message_in_pieces_is_put_together(loop: ManualLoop) -> None:
    acceptor, line, _ = joined(loop)
    frame = encode(FrameType.SLOTS, 0, b'{"d1":3}')
    line.gateway.data_received(raw(Opcode.BINARY, frame[:3], fin=False))
    line.gateway.data_received(raw(Opcode.CONT, frame[3:8], fin=False))
    line.gateway.data_received(raw(Opcode.CONT, frame[8:]))
    assert acceptor.listener.calls[-1] == ("slots", {"d1": 3})


def test_a_stranger_may_send_little_in_all(loop: ManualLoop) -> None:
    acceptor = LineAcceptor(loop)
    line = Line(loop, acceptor, Recorder())
    line.move(False)
    sent = 0
    while not line.gateway_end.is_closing():
        piece = raw(Opcode.PONG, bytes(100)) * 10
        line.gateway.data_received(piece)
        sent += len(piece)
        assert sent <= limits.UPGRADE_REQUEST_BYTES + 2 * limits.HANDSHAKE_MESSAGE_BYTES
    loop.settle()
    assert acceptor.connections == 0


def test_a_message_that_is_too_large_ends_the_session(loop: ManualLoop) -> None:
    acceptor, line, _ = joined(loop)
    line.gateway.data_received(raw(Opcode.BINARY, bytes(limits.MESSAGE_BYTES + 1)))
    assert acceptor.endpoint is not None
    assert acceptor.endpoint.closed
    (error,) = [value for name, value in acceptor.listener.calls if name == "session_closed"]
    assert error.code is ErrorCode.FRAME_TOO_LARGE


def test_a_websocket_closed_right_behind_the_challenge_is_a_closed_tunnel(loop: ManualLoop) -> None:
    line = Line(loop, LineAcceptor(loop), Recorder())
    line.move(False)
    line.gateway._websocket.send_close(1001)
    line.gateway._write_websocket()
    line.move(True)
    assert isinstance(line.agent._welcomed.exception(), TunnelClosed)


def test_a_websocket_closed_right_behind_a_bad_hello_is_a_closed_tunnel(loop: ManualLoop) -> None:
    acceptor = LineAcceptor(loop)
    line = Line(loop, acceptor, Recorder())
    line.move(False)
    bad = raw(Opcode.BINARY, encode(FrameType.HELLO, 0, bytes(100)))
    line.gateway.data_received(bad + raw(Opcode.CLOSE, b"\x03\xe8"))
    loop.settle()
    assert acceptor.connections == 0


def test_a_stream_the_peer_has_not_heard_of_yet_is_not_answered(loop: ManualLoop) -> None:
    """Else an agent that reads nothing and answers ahead makes its gateway keep every OPEN for ever."""
    pair = SessionPair()
    stream_id = pair.gateway.open_stream(request_head(), pair.now)
    refusal = encode(FrameType.RESET, stream_id, encode_reason(ErrorCode.REFUSED, ""))
    with pytest.raises(StreamStateError):
        pair.gateway.receive_message(refusal, pair.now)
    pair.send(pair.gateway)
    second = pair.gateway.open_stream(request_head(), pair.now)
    with pytest.raises(StreamStateError):
        pair.gateway.receive_message(encode(FrameType.CREDIT, second, encode_offset(1 << 20)), pair.now)
    pair.gateway.receive_message(refusal, pair.now)
    assert pair.gateway.open_streams == 1


def test_long_names_of_levels_are_malformed() -> None:
    pair = SessionPair()
    payload = b'{"' + b"x" * (limits.MODEL_NAME_CHARS + 1) + b'":1}'
    with pytest.raises(FrameMalformed, match="level"):
        pair.gateway.receive_message(encode(FrameType.SLOTS, 0, payload), pair.now)


def test_streams_are_told_the_reason_a_session_was_closed_for(loop: ManualLoop) -> None:
    acceptor, _, _ = joined(loop)
    assert acceptor.endpoint is not None
    client = Recorder()
    acceptor.endpoint.open(request_head(), client)
    acceptor.endpoint.close(ErrorCode.REVOKED, "this agent was revoked")
    assert client.calls[0] == ("reset", (ErrorCode.SESSION_LOST, "this agent was revoked"))


def test_a_session_closed_while_it_resumes_says_so_and_ends_its_tunnel(loop: ManualLoop) -> None:
    acceptor, line, listener = joined(loop)
    endpoint = acceptor.endpoint
    assert endpoint is not None
    line.agent_end.lose()
    line.pump()

    def close() -> None:
        endpoint.close(ErrorCode.REVOKED, "not any more")

    acceptor.listener.on_session_resumed = close  # type: ignore[method-assign]
    again = Line(loop, acceptor, listener, ("session-1", line.agent.endpoint))
    again.pump()
    assert again.agent_end.lost
    assert again.gateway_end.lost
    assert again.agent.endpoint.closed


def test_a_program_that_fails_in_a_callback_ends_its_session(loop: ManualLoop) -> None:
    """What was received with it is gone: nobody may go on with the rest as if nothing had happened."""
    acceptor, line, _ = joined(loop)

    def fail(levels: Mapping[str, int]) -> None:
        raise ZeroDivisionError

    acceptor.listener.on_slots = fail  # type: ignore[method-assign]
    with pytest.raises(ZeroDivisionError):
        line.gateway.data_received(raw(Opcode.BINARY, encode(FrameType.SLOTS, 0, b'{"d1":3}')))
    loop.settle()
    assert acceptor.endpoint is not None
    assert acceptor.endpoint.closed


def test_a_tunnel_that_cannot_write_from_the_start_is_watched_all_the_same(loop: ManualLoop) -> None:
    acceptor = LineAcceptor(loop)
    line = Line(loop, acceptor, Recorder())
    line.move(False)
    line.move(True)
    line.gateway.pause_writing()
    line.move(False)
    loop.settle()
    assert acceptor.tunnels
    loop.advance(limits.DEAD_AFTER_S + 1)
    assert line.gateway_end.lost


def test_refusals_nobody_reads_are_bounded() -> None:
    pair = SessionPair()
    head = request_head().to_payload()

    def flood() -> None:
        for stream_id in range(1, 20 * limits.OPEN_STREAMS):
            message = encode(FrameType.OPEN, stream_id, head) + encode(FrameType.END, stream_id)
            pair.agent.receive_message(message, pair.now)
            pair.agent.reset(stream_id, ErrorCode.REFUSED)
            pair.agent.take_events()

    with pytest.raises(StreamLimitExceeded):
        flood()
    assert len(pair.agent._outbox.frames) <= 4 * limits.OPEN_STREAMS


def test_an_answer_that_crosses_many_cuts_costs_its_retained_messages_only(loop: ManualLoop) -> None:
    """A link that carries a part of the replay each time gets through in the end."""
    acceptor, line, listener = joined(loop)
    assert acceptor.endpoint is not None
    client = Recorder()
    acceptor.endpoint.open(request_head(), client)
    line.pump()
    stream = listener.streams[0]
    stream.send_head(ResponseHead(200, ()))
    stream.send_data(bytes(range(256)) * 250)
    endpoint = line.agent.endpoint
    for _ in range(60):
        line.agent_end.lose()
        line.gateway_end.lose()
        line = Line(loop, acceptor, listener, ("session-1", endpoint))
        while not line.welcomed:
            line.move(False)
            line.move(True)
        loop.settle()
        line.move(False, 30_000)
        if len(client.body) == 64_000:
            break
    assert client.body == bytes(range(256)) * 250


@pytest.mark.parametrize("piece", ['"', "\u00ff"])
def test_a_request_head_too_long_for_a_frame_is_refused_and_takes_no_window(piece: str) -> None:
    pair = SessionPair()
    free = pair.gateway._pool.free
    head = replace(request_head(), headers=(("x", piece * 30_000),))
    with pytest.raises(HeadTooLarge):
        pair.gateway.open_stream(head, pair.now)
    assert pair.gateway._pool.free == free
    assert not pair.gateway.wants_to_send
