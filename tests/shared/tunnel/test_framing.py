from collections.abc import Iterable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from websockets.client import ClientProtocol
from websockets.frames import Frame, Opcode
from websockets.protocol import Event, Protocol, Side, State
from websockets.server import ServerProtocol
from websockets.uri import parse_uri

from shared.protocol import limits
from shared.speedups import cut_messages
from shared.tunnel import framing
from shared.tunnel.framing import MessageFramer


def opened(side: Side) -> tuple[MessageFramer, Protocol]:
    """A WebSocket behind its upgrade."""
    websocket: Protocol
    if side is Side.SERVER:
        websocket = ServerProtocol(state=State.OPEN, max_size=limits.MESSAGE_BYTES)
    else:
        uri = parse_uri("ws://gateway/tunnel")
        websocket = ClientProtocol(uri, state=State.OPEN, max_size=limits.MESSAGE_BYTES)
    return MessageFramer(websocket), websocket


def sent(side: Side, message: bytes, opcode: Opcode = Opcode.BINARY, fin: bool = True) -> bytes:
    """A frame as the peer of ``side`` sends it."""
    return Frame(opcode, message, fin).serialize(mask=side is Side.SERVER)


def as_frames(found: Iterable[bytes | Event]) -> list[object]:
    """With messages in the form in which the core tells of them."""
    return [Frame(Opcode.BINARY, each) if type(each) is bytes else each for each in found]


@pytest.fixture(params=[Side.SERVER, Side.CLIENT], ids=["gateway", "agent"])
def side(request: pytest.FixtureRequest) -> Side:
    found: Side = request.param
    return found


def test_whole_messages_do_not_pass_through_the_core(side: Side, monkeypatch: pytest.MonkeyPatch) -> None:
    framer, websocket = opened(side)
    first = framer.receive(sent(side, b"by way of the core"))
    assert as_frames(first) == [Frame(Opcode.BINARY, b"by way of the core")]
    given_to_core: list[bytes] = []
    monkeypatch.setattr(websocket, "receive_data", given_to_core.append)
    assert framer.receive(sent(side, b"one") + sent(side, b"two")) == [b"one", b"two"]
    assert given_to_core == []


def test_after_anything_else_messages_are_cut_again(side: Side) -> None:
    framer, websocket = opened(side)
    framer.receive(sent(side, b"first"))
    ping = sent(side, b"", Opcode.PING)
    found = framer.receive(sent(side, b"one") + ping + sent(side, b"two"))
    assert as_frames(found) == as_frames([b"one", Frame(Opcode.PING, b""), b"two"])
    assert websocket.data_to_send() != []  # the core has answered the ping
    assert framer.receive(sent(side, b"three")) == [b"three"]


def test_a_message_that_comes_in_pieces_is_joined_once(side: Side, monkeypatch: pytest.MonkeyPatch) -> None:
    framer, _ = opened(side)
    framer.receive(sent(side, b"first"))
    looks: list[int] = []
    cut = cut_messages

    def watched(data: bytes, start: int, masked: bool, most_bytes: int) -> tuple[list[bytes], int]:
        looks.append(len(data))
        return cut(data, start, masked, most_bytes)

    monkeypatch.setattr(framing, "cut_messages", watched)
    message = bytes(limits.MESSAGE_BYTES)
    data = sent(side, message)
    found = [each for at in range(len(data)) for each in framer.receive(data[at : at + 1])]
    assert found == [message]
    assert len(looks) <= 5


def test_a_message_that_is_too_long_is_the_cores_error(side: Side) -> None:
    framer, websocket = opened(side)
    framer.receive(sent(side, b"first"))
    assert framer.receive(sent(side, bytes(limits.MESSAGE_BYTES + 1))) == []
    assert websocket.parser_exc is not None


def test_nothing_is_cut_once_the_peer_has_closed(side: Side) -> None:
    framer, websocket = opened(side)
    framer.receive(sent(side, b"first"))
    framer.receive(sent(side, b"\x03\xe8", Opcode.CLOSE))
    assert websocket.state is State.CLOSING
    assert framer.receive(sent(side, b"too late")) == []


def test_a_library_that_waits_elsewhere_gets_everything(side: Side, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(framing, "_between_frames", lambda websocket: False)
    framer, _ = opened(side)
    for message in (b"one", b"two"):
        assert framer.receive(sent(side, message)) == [Frame(Opcode.BINARY, message)]


def test_what_is_framed_is_read_by_the_peers_core(side: Side) -> None:
    framer, _ = opened(side)
    _, peer = opened(Side.CLIENT if side is Side.SERVER else Side.SERVER)
    messages = [b"", b"x" * 125, b"y" * 126, b"z" * limits.MESSAGE_BYTES]
    peer.receive_data(framer.frame(messages))
    assert peer.parser_exc is None
    assert [frame.data for frame in peer.events_received() if isinstance(frame, Frame)] == messages


_OPCODES = st.sampled_from(
    [Opcode.BINARY, Opcode.BINARY, Opcode.PING, Opcode.CONT, Opcode.TEXT, Opcode.CLOSE]
)
_KINDS = st.tuples(_OPCODES, st.binary(max_size=130), st.booleans(), st.booleans())


@given(
    st.sampled_from([Side.SERVER, Side.CLIENT]),
    st.lists(st.one_of(_KINDS, st.binary(min_size=1, max_size=6)), max_size=12),
    st.lists(st.integers(1, 60)),
)
def test_it_tells_what_the_core_alone_tells(
    side: Side, parts: Sequence[tuple[Opcode, bytes, bool, bool] | bytes], cuts: list[int]
) -> None:
    """Frames of every kind and plain noise, wherever the connection cuts them."""
    data = b""
    for part in parts:
        if isinstance(part, bytes):
            data += part
        else:
            opcode, body, fin, masked = part
            control = opcode in (Opcode.PING, Opcode.CLOSE)  # the library frames none in pieces
            data += Frame(opcode, body[:125] if control else body, fin or control).serialize(mask=masked)
    framer, websocket = opened(side)
    _, alone = opened(side)
    found: list[bytes | Event] = []
    at = 0
    for size in [*cuts, len(data)]:
        found += framer.receive(data[at : at + size])
        at += size
    alone.receive_data(data)
    assert as_frames(found) == list(alone.events_received())
    assert type(websocket.parser_exc) is type(alone.parser_exc)
    assert websocket.state is alone.state
    assert websocket.data_to_send() == alone.data_to_send() or side is Side.CLIENT


def test_an_agent_masks_every_message_otherwise() -> None:
    framer, _ = opened(Side.CLIENT)
    masks = set()
    for count in (1, 3, 2, 300, 1) * 20:
        messages = [b"%d" % number for number in range(count)]
        data = framer.frame(messages)
        assert cut_messages(data, 0, True, limits.MESSAGE_BYTES) == (messages, len(data))
        masks.add(data[2:6])
    assert len(masks) == 100
