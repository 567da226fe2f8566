"""A session whose peer sends anything at all: it goes on, or it ends with a documented error."""

from random import Random

import orjson

from shared.protocol import limits
from shared.protocol.credit import PeerLimits, WindowSettings
from shared.protocol.engine_state import EngineState
from shared.protocol.errors import ErrorCode, LocalError, ProtocolError
from shared.protocol.events import StreamOpened
from shared.protocol.frames import FrameType, TunnelRole, encode, encode_offset, encode_reason
from shared.protocol.messages import AgentState, AgentStatus, DeploymentStatus, ResponseHead
from shared.protocol.others import Expected, OtherRequest, Others
from shared.protocol.progress import Preview, Progress
from shared.protocol.session import ProtocolSession
from tests.fuzz.fuzz_frames import spoil
from tests.support.session_pair import consumed, request_head

WINDOWS = WindowSettings(floor=4096, initial=8192, maximum=65536, session=200_000, streams=16)
_VALUES = [
    None,
    True,
    -1,
    0,
    1,
    2**63,
    1.5,
    "",
    "a",
    "x" * 300,
    [],
    {},
    [["a", "b"]],
    {"a": 1},
    "loaded",
    200,
]
_NAMES = """
deployment method path headers model request_id streaming usage tier deadline_s credit trace
fraction text preview data type upgrade upgrades
expected began first ended number age_s read input_tokens output_tokens prefix
status deployments gpus id version routes slots queue_s reason gateways labels
""".split()  # noqa: SIM905


def _json(random: Random) -> bytes:
    """An object with members of the right names and any values."""
    members = {random.choice(_NAMES): random.choice(_VALUES) for _ in range(random.randrange(8))}
    return orjson.dumps(members)


def _payload(random: Random, frame_type: FrameType) -> bytes:
    if random.random() < 0.2:
        return _json(random)
    match frame_type:
        case FrameType.OPEN:
            head = request_head(random.random() < 0.5)
            head.upgrade = random.random() < 0.3
            return head.to_payload()
        case FrameType.HEAD:
            return ResponseHead(random.choice((200, 200, 101)), ()).to_payload()
        case FrameType.DATA:
            return bytes(random.randint(1, 3000))
        case FrameType.RESET | FrameType.CLOSE:
            return encode_reason(random.choice(list(ErrorCode)), "why")
        case FrameType.CREDIT | FrameType.ACK | FrameType.PING | FrameType.PONG:
            return encode_offset(random.choice((0, 1, 5, 10**5, 2**62, 2**63)))
        case FrameType.STATE:
            status = random.choice(list(DeploymentStatus))
            engines = (
                EngineState("e" * random.randint(0, 300), status, load_progress=random.random() * 1.1),
            )
            return AgentState(AgentStatus.READY, engines=engines * random.choice((0, 1, 1, 65))).to_payload()
        case FrameType.PROGRESS:
            size = random.choice((0, 5, 3000, limits.PREVIEW_BYTES))
            preview = Preview("image/png", bytes(size)) if size else None
            return Progress(random.random(), "t" * random.choice((0, 5, 300)), preview).to_payload()
        case FrameType.OTHERS:
            number = random.randint(1, 9)
            chain = [random.getrandbits(64) for _ in range(random.choice((0, 1, 5, 300)))]
            request = OtherRequest(number, "d1", random.random(), True, Expected.of(number, 1, chain))
            return Others((request,) * random.choice((0, 1, 1, 1025)), (number,), (number,)).to_payload()
        case _:
            return b"" if frame_type is FrameType.END else b'{"d1":3}'


def _frame(random: Random, streams: int) -> bytes:
    """A frame that may well be right: types and streams as a peer would use them."""
    numbered = [t for t in FrameType if t >= FrameType.OPEN]
    frame_type = FrameType.DATA if random.random() < 0.3 else random.choice(numbered)
    stream_id = 0 if frame_type >= FrameType.SLOTS else random.randint(1, streams + 1)
    payload = _payload(random, frame_type)
    try:
        return encode(frame_type, stream_id, payload)
    except AssertionError:  # a payload of the wrong size for its type: send it all the same
        return bytes([frame_type]) + stream_id.to_bytes(4, "big") + len(payload).to_bytes(4, "big") + payload


def _answer(random: Random, session: ProtocolSession, now: float, headed: set[int], role: TunnelRole) -> None:
    """What a program does meanwhile. What comes too late is refused and changes nothing."""
    for event in session.take_events():
        stream_id = getattr(event, "stream_id", None)
        if stream_id is None:
            continue
        try:
            if isinstance(event, StreamOpened) and random.random() < 0.8:
                session.send_head(stream_id, ResponseHead(200, ()))
                headed.add(stream_id)
            if role is TunnelRole.AGENT and random.random() < 0.2:
                session.send_progress(stream_id, Progress(random.random()), now)
            match random.randrange(5 if stream_id in headed else 3):
                case 0:
                    consumed(session, stream_id, random.randrange(5000), now)
                case 1:
                    session.reset(stream_id, ErrorCode.CANCELLED)
                case 3:
                    session.send_data(stream_id, bytes(random.randrange(3000)))
                case 4:
                    session.end(stream_id)
                case _:
                    pass
        except LocalError:
            continue


def _one_session(random: Random) -> int:
    role = random.choice(list(TunnelRole))
    session = ProtocolSession(role, PeerLimits(16, 4096, 65536), 0.0, WINDOWS)
    frames, now, streams = 0, 0.0, 0
    headed: set[int] = set()
    for _ in range(random.randint(1, 60)):
        now += random.random() / 10
        if role is TunnelRole.GATEWAY and random.random() < 0.3 and not session.closed:
            head = request_head()
            head.upgrade = random.random() < 0.5
            try:
                streams = session.open_stream(head, now)
                headed.add(streams)
            except LocalError:
                pass
        batch = [_frame(random, max(streams, 3)) for _ in range(random.choice((1, 1, 3)))]
        message = b"".join(batch)
        frames += len(batch)
        try:
            session.receive_message(spoil(random, message) if random.random() < 0.05 else message, now)
            session.bytes_received(now)
            session.handle_deadline(now)
        except ProtocolError as error:
            session.close(error.code, str(error))
        assert session.held_bytes <= WINDOWS.session + limits.DATA_PAYLOAD_BYTES
        _answer(random, session, now, headed, role)
        session.data_to_send(random.choice((0, 100, 10_000)), now)
        if session.closed:
            break
    return frames


def fuzz(random: Random, inputs: int) -> int:
    frames = 0
    while frames < inputs:
        frames += _one_session(random)
    return frames
