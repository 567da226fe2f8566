"""Messages at random and near misses: decoding gives frames or a documented error, and frames encode back."""

from random import Random

from shared.protocol import limits
from shared.protocol.errors import ProtocolError
from shared.protocol.frames import HEADER, RULES, Frame, FrameType, MessageKind, decode_message, encode


def random_frame(random: Random, kind: MessageKind) -> bytes:
    """A well-formed frame of a kind with a payload of random bytes."""
    frame_type = random.choice([t for t, rule in RULES.items() if rule.kind is kind])
    rule = RULES[frame_type]
    most = min(rule.most_bytes, rule.least_bytes + random.choice((0, 1, 8, 60, 600)))
    payload = random.randbytes(random.randint(rule.least_bytes, most))
    on_stream = rule.on_stream if rule.on_stream is not None else random.random() < 0.5
    return encode(frame_type, random.randint(1, 2**32 - 1) if on_stream else 0, payload)


def spoil(random: Random, message: bytes) -> bytes:
    """The message with one thing wrong, or left as it is."""
    if not message:
        return message
    data = bytearray(message)
    match random.randrange(6):
        case 0:
            data[random.randrange(len(data))] = random.randrange(256)
        case 1:
            del data[random.randrange(len(data)) :]
        case 2:
            data += random.randbytes(random.randint(1, 20))
        case 3:
            HEADER.pack_into(data, 0, random.randrange(256), random.getrandbits(32), random.getrandbits(32))
        case 4:
            del data[random.randrange(len(data))]
        case _:
            pass
    return bytes(data)


def fuzz(random: Random, inputs: int) -> int:
    frames = 0
    while frames < inputs:
        kind = random.choice(list(MessageKind))
        count = random.choice((1, 1, 2, 5, 30))
        message = b"".join(random_frame(random, kind) for _ in range(count))[: limits.MESSAGE_BYTES + 1]
        message = random.randbytes(random.randrange(64)) if random.random() < 0.1 else spoil(random, message)
        frames += count
        try:
            decoded_kind, decoded = decode_message(message)
        except ProtocolError:
            continue
        assert decoded
        assert all(isinstance(frame, Frame) for frame in decoded)
        assert all(RULES[FrameType(frame.type)].kind is decoded_kind for frame in decoded)
        assert b"".join(encode(*frame) for frame in decoded) == message
    return frames
