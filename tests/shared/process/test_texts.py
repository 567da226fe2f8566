"""What came from bytes is told from text."""

import os

from shared.process.texts import is_text


def test_bytes_that_are_no_utf8_are_no_text() -> None:
    assert is_text("")
    assert is_text("caf\xe9 \U0001f600\0")
    assert not is_text(os.fsdecode(b"a\xff"))
