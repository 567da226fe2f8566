"""Tokens to text, piece by piece."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.backends.torch_engine.text import IncrementalDecoder, StopStrings, TextAssembler


def decode_bytes(token_ids: list[int]) -> str:
    """A byte-level tokenizer at its plainest: a token is a byte."""
    return bytes(token_ids).decode(errors="replace")


WORDS = ["▁Hello", "▁world", ",", "▁again"]


def decode_words(token_ids: list[int]) -> str:
    """Like SentencePiece: the space before the first word is dropped."""
    return "".join(WORDS[token] for token in token_ids).replace("▁", " ").removeprefix(" ")


def pieces_of(decoder: IncrementalDecoder, token_ids: Sequence[int]) -> list[str]:
    return [*(decoder.push([token]) for token in token_ids), decoder.finish()]


@given(st.text())
def test_pieces_joined_are_the_text(text: str) -> None:
    whole = text.rstrip("\ufffd")
    assert "".join(pieces_of(IncrementalDecoder(decode_bytes), text.encode())).rstrip("\ufffd") == whole


@given(st.text(st.characters(exclude_characters="\ufffd", exclude_categories=["Cs"])))
def test_no_piece_holds_half_a_character(text: str) -> None:
    for piece in pieces_of(IncrementalDecoder(decode_bytes), text.encode()):
        assert "\ufffd" not in piece


def test_a_character_is_said_with_its_last_byte() -> None:
    assert pieces_of(IncrementalDecoder(decode_bytes), "é😀".encode()) == ["", "é", "", "", "", "😀", ""]


def test_a_character_cut_off_by_the_end_is_never_said() -> None:
    assert pieces_of(IncrementalDecoder(decode_bytes), "a😀".encode()[:-1]) == ["a", "", "", "", ""]


def test_bytes_that_are_no_text_are_not_held_for_ever() -> None:
    pieces = pieces_of(IncrementalDecoder(decode_bytes), b"\xff" * 30)
    assert sum(map(len, pieces)) >= 18


def test_spaces_between_words_survive_a_tokenizer_that_drops_the_first() -> None:
    assert pieces_of(IncrementalDecoder(decode_words), [0, 1, 2, 3]) == ["Hello", " world", ",", " again", ""]


def test_tokens_without_text_say_nothing() -> None:
    decoder = IncrementalDecoder(lambda ids: "")
    assert pieces_of(decoder, range(100)) == [""] * 101


def test_text_ends_before_the_stop_string() -> None:
    stops = StopStrings(["END"])
    assert stops.push("to the END and on") == "to the "
    assert stops.found
    assert stops.push("more") == ""
    assert stops.finish() == ""


def test_what_may_begin_a_stop_string_is_held_back() -> None:
    stops = StopStrings(["</s>"])
    assert stops.push("a <") == "a "
    assert stops.push("/s") == ""
    assert stops.push("mall>") == "</small>"
    assert not stops.found


def test_what_was_held_back_is_said_at_the_end() -> None:
    stops = StopStrings(["\n\n"])
    assert stops.push("line\n") == "line"
    assert stops.finish() == "\n"


def test_the_first_of_several_stop_strings_counts() -> None:
    stops = StopStrings(["later", "soon"])
    assert stops.push("it stops soon, not later") == "it stops "


@given(
    st.text("ab", max_size=30),
    st.lists(st.text("ab", min_size=1, max_size=4), min_size=1, max_size=3),
    st.data(),
)
def test_stopping_does_not_depend_on_how_text_is_cut(
    text: str, stops: list[str], data: st.DataObject
) -> None:
    scanner = StopStrings(stops)
    said, rest = "", text
    while rest:
        length = data.draw(st.integers(1, len(rest)))
        said += scanner.push(rest[:length])
        rest = rest[length:]
    said += scanner.finish()
    spans = [(text.find(stop) + len(stop), text.find(stop)) for stop in stops if stop in text]
    assert said == (text[: min(spans)[1]] if spans else text)
    assert scanner.found == bool(spans)


@pytest.mark.parametrize("stop", ["é", "naï"])
def test_stop_strings_are_found_across_characters_of_several_tokens(stop: str) -> None:
    assembler = TextAssembler(decode_bytes, [stop])
    said = "".join(assembler.push([byte]) for byte in "so naïvé".encode())
    assert assembler.stopped
    assert said + assembler.finish() == "so naïvé".partition(stop)[0]
