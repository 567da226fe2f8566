"""What a peer may try with a tunnel, and what happens at awkward moments. In memory, without real time."""

from collections.abc import Mapping

import pytest
from websockets.frames import Frame as WebSocketFrame
from websockets.frames import Opcode

from shared.protocol import limits
from shared.protocol.errors import (
    ErrorCode,
    TunnelClosed,
)
from shared.protocol.frames import FrameType, encode
from shared.protocol.messages import ResponseHead
from shared.speedups import NATIVE, websocket_frames
from shared.tunnel import framing
from shared.tunnel.accept import NEW_S
from tests.support.lines import Line, LineAcceptor, ManualLoop
from tests.support.tunnels import Recorder, request_head


@pytest.fixture(autouse=True, params=["core", "python", *(["native"] if NATIVE else [])])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Messages go through the WebSocket library's core, or the short way, in Python and in C."""
    if request.param == "core":
        monkeypatch.setattr(framing, "_between_frames", lambda websocket: False)
    elif request.param == "python":
        monkeypatch.setattr(framing, "cut_messages", websocket_frames.cut_messages)
        monkeypatch.setattr(framing, "frame_messages", websocket_frames.frame_messages)


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
