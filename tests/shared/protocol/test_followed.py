"""Answers that are followed: progress, then a head, then the body."""

import pytest

from shared.protocol.followed import (
    LINE_BYTES,
    FollowedAnswer,
    FollowedReader,
    NotFollowed,
    answer_line,
    progress_line,
)

ANSWER = FollowedAnswer(200, (("content-type", "video/mp4"),), {"seconds": "4"})
WHOLE = progress_line(0.25) + progress_line(0.5) + answer_line(ANSWER) + b"\x00\nfilm"


@pytest.mark.parametrize("piece_bytes", [1, 7, len(WHOLE)])
def test_however_it_is_cut_the_answer_and_its_body_are_found(piece_bytes: int) -> None:
    reader, body = FollowedReader(), b""
    for at in range(0, len(WHOLE), piece_bytes):
        piece = WHOLE[at : at + piece_bytes]
        body += piece if reader.answer is not None else reader.feed(piece)
    assert (reader.progress, reader.answer, body) == (0.5, ANSWER, b"\x00\nfilm")


def test_progress_is_between_zero_and_one() -> None:
    reader = FollowedReader()
    reader.feed(b'{"progress": 7}\n{"progress": true}\n{"other": 1}\n')
    assert reader.progress == 1.0
    reader.feed(progress_line(-1))
    assert reader.progress == 0.0


@pytest.mark.parametrize(
    "data",
    [
        b"no json\n",
        b"[]\n",
        b'{"answer": 1}\n',
        b'{"answer": {"status": 99}}\n',
        b'{"answer": {"status": 200, "headers": {}}}\n',
        b'{"answer": {"status": 200, "headers": [["a"]]}}\n',
        b'{"answer": {"status": 200, "headers": [], "facts": 1}}\n',
        b"x" * (LINE_BYTES + 1),
    ],
)
def test_what_is_no_followed_answer_is_refused(data: bytes) -> None:
    with pytest.raises(NotFollowed):
        FollowedReader().feed(data)
