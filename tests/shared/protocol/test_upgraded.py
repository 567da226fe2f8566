"""Messages in the bodies of upgraded streams: vectors, every cut, what is no message (PROTOCOL §5.5)."""

from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.protocol import limits
from shared.protocol.errors import ErrorCode, PieceMalformed
from shared.protocol.upgraded import (
    ABNORMAL,
    NO_CODE,
    CloseNotice,
    MessagePiece,
    PieceKind,
    PieceReader,
    close_code_of,
    encode_close,
    encode_pieces,
    may_be_sent,
)
from tests.support import frame_vectors

VECTORS: list[dict[str, Any]] = orjson.loads(frame_vectors.PATH.read_bytes())["upgraded"]
MESSAGES = st.lists(
    st.tuples(st.sampled_from([PieceKind.TEXT, PieceKind.BINARY]), st.binary(max_size=40)), max_size=8
)


def read(data: bytes, *cuts: int) -> tuple[list[MessagePiece], CloseNotice | None]:
    reader, pieces, start = PieceReader(), [], 0
    for end in (*sorted(cut % (len(data) + 1) for cut in cuts), len(data)):
        pieces += reader.feed(data[start:end])
        start = end
    return pieces, reader.closed


@pytest.mark.parametrize("vector", VECTORS, ids=lambda vector: vector["what"])
def test_the_vectors_are_read_as_they_are_meant(vector: dict[str, Any]) -> None:
    data = bytes.fromhex(vector["bytes"])
    if vector["pieces"] is None:
        with pytest.raises(PieceMalformed):
            read(data)
        return
    pieces, closed = read(data)
    said: list[dict[str, Any]] = [
        {"kind": PieceKind(piece.kind).name, "final": piece.final, "data": piece.data.hex()}
        for piece in pieces
    ]
    if closed is not None:
        said.append({"kind": "CLOSE", "code": closed.code, "reason": closed.reason})
    assert said == vector["pieces"]


@given(MESSAGES, st.lists(st.integers(0, 500), max_size=10))
def test_messages_are_read_as_they_were_sent_however_the_body_is_cut(
    messages: list[tuple[PieceKind, bytes]], cuts: list[int]
) -> None:
    data = b"".join(b"".join(encode_pieces(kind, text, final=True)) for kind, text in messages)
    pieces, closed = read(data + encode_close(1000, "done"), *cuts)
    assert [(piece.kind, piece.final, piece.data) for piece in pieces] == [
        (kind, True, text) for kind, text in messages
    ]
    assert closed == CloseNotice(1000, "done")


@pytest.mark.parametrize("size", [0, 1, limits.PIECE_BYTES, limits.PIECE_BYTES + 1, 5 * limits.PIECE_BYTES])
def test_a_long_message_is_pieces_and_only_the_last_is_final(size: int) -> None:
    encoded = encode_pieces(PieceKind.BINARY, bytes(size), final=True)
    pieces, _ = read(b"".join(encoded))
    assert len(pieces) == max(1, -(-size // limits.PIECE_BYTES))
    assert [piece.final for piece in pieces] == [False] * (len(pieces) - 1) + [True]
    assert [piece.kind for piece in pieces][1:] == [PieceKind.CONTINUATION] * (len(pieces) - 1)
    assert sum(len(piece.data) for piece in pieces) == size


def test_a_reader_holds_no_more_than_a_piece_of_a_message_of_any_length() -> None:
    """64 MiB of one message pass, sixteen KiB at a time."""
    reader, passed, kind = PieceReader(), 0, PieceKind.BINARY
    fragment = bytes(limits.PIECE_BYTES)
    for _ in range(4096):
        for encoded in encode_pieces(kind, fragment, final=False):
            passed += sum(len(piece.data) for piece in reader.feed(encoded))
        kind = PieceKind.CONTINUATION
        assert len(reader._held) < limits.PIECE_BYTES + 3
    assert passed == 4096 * limits.PIECE_BYTES


@given(st.integers(0, 70_000), st.text(max_size=200))
def test_every_closing_piece_that_is_written_is_read(code: int, reason: str) -> None:
    _, closed = read(encode_close(code, reason))
    assert closed is not None
    assert closed.code == (code if may_be_sent(code) else NO_CODE)
    assert closed.reason == "" or reason.encode("utf-8", "replace").decode().startswith(closed.reason)


def test_a_body_that_ends_without_a_closing_piece_was_lost() -> None:
    reader = PieceReader()
    reader.feed(encode_pieces(PieceKind.TEXT, b"hi", final=True)[0])
    assert reader.end() == CloseNotice(ABNORMAL, "")


def test_a_reset_has_a_code_that_may_be_sent() -> None:
    assert all(may_be_sent(close_code_of(code)) for code in ErrorCode)
    assert close_code_of(ErrorCode.DRAINING) == 1001
    assert close_code_of(ErrorCode.ENGINE_FAILED) == 1011
