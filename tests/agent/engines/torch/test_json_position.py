"""Where in JSON a text is, by what tokens could end it."""

import json
import string
from json import JSONDecoder

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from agent.engines.torch.json_position import INTEGER_DIGITS, NUMBER_CHARS, JSONPosition, TokenStarts

TOKENS = [character.encode() for character in string.printable] + [b'",', b"}]", b"12", b""]
DIGITS = [bytes((digit,)) for digit in b"0123456789"]
STARTS = TokenStarts(TOKENS)
ALL = torch.ones(len(TOKENS) + 5, dtype=torch.bool)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-9999, 9999) | st.text(string.printable),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(string.printable), inner),
)


def after(text: str) -> JSONPosition:
    position = JSONPosition(STARTS)
    position.follow(TOKENS.index(character.encode()) for character in text)
    return position


def closing(position: JSONPosition, allowed: torch.Tensor = ALL) -> set[bytes]:
    found = position.closing(allowed)
    return set() if found is None else {TOKENS[token] for token in found.nonzero().flatten().tolist()}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", {b"}", b"]", b"}]"}),
        ('{"a', {b'"', b'",'}),
        ('{"a\\', set()),
        ('{"a\\"', {b'"', b'",'}),
        ('{"a\\\\', {b'"', b'",'}),
        ('{"a\\\\"', {b"}", b"]", b"}]"}),
        ('{"}": 1', {b"}", b"]", b"}]"}),
    ],
)
def test_a_string_is_ended_by_a_quote_and_all_else_by_brackets(text: str, expected: set[bytes]) -> None:
    assert closing(after(text)) == expected
    assert closing(after(text).copy()) == expected


def test_where_no_bracket_is_allowed_a_comma_ends_a_value() -> None:
    assert closing(after('{"a": 1'), ALL & ~torch.nn.functional.pad(STARTS.brackets, (0, 5))) == {b","}
    assert closing(after('{"a": 1'), torch.zeros_like(ALL)) == set()


@given(VALUES)
def test_a_position_knows_strings_in_any_json(value: object) -> None:
    text, position = json.dumps(value), JSONPosition(STARTS)
    for cut in range(len(text) + 1):
        assert (closing(position) != {b"}", b"]", b"}]"}) == _in_string(text[:cut])
        position.follow(TOKENS.index(character.encode()) for character in text[cut : cut + 1])


def _in_string(begun: str) -> bool:
    """As the library that reads JSON has it."""
    place = 0
    while (quote := begun.find('"', place)) >= 0:
        try:
            _, place = JSONDecoder().raw_decode(begun, quote)
        except json.JSONDecodeError:
            return True
    return False


def starting(allowed: torch.Tensor) -> set[bytes]:
    return {TOKENS[token][:1] for token in allowed.nonzero().flatten().tolist() if token < len(TOKENS)}


def test_only_a_number_that_is_too_long_must_end() -> None:
    integer, number = "1" * INTEGER_DIGITS, "-" + "1" * 10 + "." + "1" * (NUMBER_CHARS - 12)
    assert len(number) == NUMBER_CHARS
    for text in (f"[-{integer[1:]}", f'["{integer}', f"[{integer}, 1", f"[{number[:-1]}", "[-1.5e10"):
        assert after(text).without_long_numbers(ALL).equal(ALL)
    assert starting(ALL) - starting(after(f"[{integer}").without_long_numbers(ALL)) == set(DIGITS)
    assert starting(ALL) - starting(after(f"[-{integer}").without_long_numbers(ALL)) == set(DIGITS)
    left = starting(after(f"[{number}").without_long_numbers(ALL))
    assert starting(ALL) - left == {*DIGITS, b".", b"e", b"E", b"+", b"-"}
    only = torch.zeros_like(ALL)
    only[TOKENS.index(b"12")] = True
    assert after(f"[{integer}").without_long_numbers(only).equal(only)
