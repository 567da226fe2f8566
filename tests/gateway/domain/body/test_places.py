import json
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.domain.body.places import text_place, top_values, value_end

_texts = st.sampled_from(["model", '"model":1', "\\", '"', "{", "]", "mod\u0065l", ""]) | st.text(max_size=5)
_values = st.recursive(
    _texts | st.integers(-5, 5) | st.none(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_texts, inner, max_size=3),
    max_leaves=10,
)


@given(st.lists(st.tuples(_texts, _values), max_size=6), st.sampled_from([None, 1]), st.booleans())
def test_every_member_at_the_top_is_found_and_no_other(
    members: list[tuple[str, Any]], indent: int | None, ascii_only: bool
) -> None:
    written = [
        json.dumps(name, ensure_ascii=ascii_only) + " : " + json.dumps(value, indent=indent)
        for name, value in members
    ]
    body = ("{" + " ,\n".join(written) + "}").encode("utf-8", "replace")
    found = [body[start : value_end(body, start, 1000)] for start in top_values(body, "model")]
    expected = [value for name, value in members if name == "model"]
    assert [orjson.loads(each) for each in found] == orjson.loads(orjson.dumps(expected))


@pytest.mark.parametrize(
    ("body", "found"),
    [
        (b'{"say \\"model":1,"model":2}', [b"2"]),
        (b'{"say \\\\":{"model":1},"model":2}', [b"2"]),
        (b'{"mo\\u0064el" : 1}', [b" 1"]),
        (b'{"a":[{"model":1}]}', []),
    ],
)
def test_quotes_within_strings_are_told_apart(body: bytes, found: list[bytes]) -> None:
    assert [body[start : value_end(body, start, 9)] for start in top_values(body, "model")] == found


def test_a_value_of_more_tokens_than_asked_for_has_no_end() -> None:
    body = b'{"model":[%b1]}' % (b"1," * 50)
    assert value_end(body, 9, 1000) == len(body) - 1
    assert value_end(body, 9, 20) is None


def test_a_text_is_found_with_its_quotes_if_it_reads_so() -> None:
    body = b'{"model": "\\u0061b"}'
    assert text_place(body, 9, "ab") == (10, 19)
    assert text_place(body, 9, "b") is None
    assert text_place(b'{"model":1}', 9, "1") is None
