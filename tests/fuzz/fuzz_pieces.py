"""Bodies of upgraded streams, right and nearly right: pieces, or the documented error."""

from random import Random

from shared.protocol import limits
from shared.protocol.errors import PieceMalformed
from shared.protocol.frames import HEADER
from shared.protocol.upgraded import PieceKind, PieceReader, encode_close, encode_pieces
from tests.fuzz.fuzz_frames import spoil


def _body(random: Random) -> bytes:
    parts: list[bytes] = []
    for _ in range(random.randrange(6)):
        data = random.randbytes(random.choice((0, 1, 50, limits.PIECE_BYTES, limits.PIECE_BYTES + 7)))
        parts += encode_pieces(random.choice((PieceKind.TEXT, PieceKind.BINARY)), data, final=True)
    if random.random() < 0.5:
        parts.append(encode_close(random.randrange(6000), "why" * random.randrange(60)))
    return b"".join(parts)


def _spoilt(random: Random, body: bytes) -> bytes:
    return spoil(random, body) if len(body) >= HEADER.size else body[:-1]


def fuzz(random: Random, inputs: int) -> int:
    for _ in range(inputs):
        sent = _body(random)
        body = random.randbytes(random.randrange(64)) if random.random() < 0.2 else _spoilt(random, sent)
        reader, start, size = PieceReader(), 0, 0
        try:
            while start < len(body):
                end = start + random.choice((1, 3, 100, 20_000))
                pieces = reader.feed(body[start:end])
                size += sum(3 + len(piece.data) for piece in pieces)
                assert all(len(piece.data) <= limits.PIECE_BYTES for piece in pieces)
                assert len(reader._held) < limits.PIECE_BYTES + 3
                start = end
        except PieceMalformed:
            assert body != sent
            continue
        assert size <= len(body)
    return inputs
