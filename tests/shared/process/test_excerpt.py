"""Quotations in messages."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.process.excerpt import json_excerpt, printable, shortened


@pytest.mark.parametrize(
    ("value", "told"),
    [
        ({"type": "text"}, '{"type":"text"}'),
        (
            {"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "object"}}},
            '{"type":"json_schema",…}',
        ),
        ([1] * 100, "[1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,…]"),
        ("x" * 100, f'"{"x" * 37}…"'),
        (None, "null"),
    ],
)
def test_json_is_told_by_whole_members(value: object, told: str) -> None:
    assert json_excerpt(value, 40) == told


@given(
    st.recursive(
        st.none() | st.text() | st.integers(-9, 9), lambda v: st.lists(v) | st.dictionaries(st.text(), v)
    )
)
def test_brackets_and_quotes_are_closed_however_long_it_is(value: object) -> None:
    told = json_excerpt(value, 20)
    if told[:1] in "[{":
        assert told[-1] == {"[": "]", "{": "}"}[told[0]]
    if told[:1] == '"':
        assert told[-1] == '"'


def test_text_ends_after_a_word() -> None:
    assert shortened("one\n two", 40) == "one two"
    assert shortened("alpha beta gamma", 12) == "alpha beta… (16 characters)"
    assert shortened("x" * 50, 10) == f"{'x' * 10}… (50 characters)"


def test_what_could_steer_a_terminal_is_not_printed() -> None:
    assert printable("a\x1b[31m\tb\n\udcff\u202eé😀") == "a?[31m?b???é😀"
    assert printable("a\nb", keep="\n") == "a\nb"
