"""The words in which engines say what a model can do."""

import pytest

from shared.protocol import limits
from shared.protocol.capabilities import usable_capabilities


def test_words_are_kept_once_and_in_their_order() -> None:
    assert usable_capabilities(["tools", "text-to-image", "tools", "onnxruntime_onnx"]) == (
        *("tools", "text-to-image", "onnxruntime_onnx"),
    )


def test_what_is_no_word_or_has_no_room_is_left_out() -> None:
    assert usable_capabilities(["two words", "", 7, None, "é", "x" * (limits.CAPABILITY_CHARS + 1)]) == ()
    many = usable_capabilities([f"c{number}" for number in range(100)])
    assert many == tuple(f"c{number}" for number in range(limits.MODEL_CAPABILITIES))


def test_what_is_no_list_is_refused() -> None:
    with pytest.raises(ValueError, match="list"):
        usable_capabilities("tools")
