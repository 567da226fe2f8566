"""What came from bytes is told from text."""

import os

import pytest

from shared.process.texts import as_field_value, is_text


def test_bytes_that_are_no_utf8_are_no_text() -> None:
    assert is_text("")
    assert is_text("caf\xe9 \U0001f600\0")
    assert not is_text(os.fsdecode(b"a\xff"))


def test_what_ends_a_header_field_is_taken_away_around_a_text_and_refused_inside() -> None:
    assert as_field_value(" a b\r\n") == "a b"
    for text in ("a\nb", "a\0b", os.fsdecode(b"a\xff")):
        with pytest.raises(ValueError, match="line ends"):
            as_field_value(text)
