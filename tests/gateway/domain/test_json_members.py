"""Members of JSON objects are found where they are, and replaced with every other byte as it was."""

import json
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.domain.errors import BadRequest
from gateway.domain.json_members import (
    MOST_REPEATED,
    names_model_once,
    only_model,
    option_places,
    text_places,
    top_values,
    usage_edits,
    value_end,
)
from gateway.domain.request import RequestBody
from tests.support import json_texts


def with_usage(body: bytes, options: dict[str, Any] | None, *, present: bool, cut: int = 0) -> bytes:
    """``body``, held in pieces of ``cut`` bytes, after its edits."""
    places = option_places(body) if present else []
    empty = not orjson.loads(body)
    edits = usage_edits(body.index(b"{") + 1, empty=empty, options=options, places=places)
    held = RequestBody([body[at : at + cut] for at in range(0, len(body), cut)] if cut else body)
    held.edit(edits)
    assert held.held_bytes == len(held.prefix)
    return held.prefix


@given(st.data(), st.binary(min_size=2, max_size=20), st.binary(max_size=5))
def test_an_edit_of_one_piece_is_that_of_many(data: st.DataObject, body: bytes, new: bytes) -> None:
    places = st.integers(0, len(body))
    spans = st.tuples(places, places).map(lambda span: (min(span), max(span)))
    start, end = data.draw(spans)
    models = data.draw(st.lists(spans.filter(lambda span: span[0] < span[1]), max_size=3))
    cut = data.draw(st.integers(1, len(body) - 1))
    one = RequestBody(body, size_bytes=len(body), models=models)
    many = RequestBody([body[:cut], body[cut:]], size_bytes=len(body), models=models)
    for held in (one, many):
        held.edit([(start, end, new)])
    assert b"".join(one.pieces) == b"".join(many.pieces) == body[:start] + new + body[end:]
    assert (one.held_bytes, one.size_bytes, one.models) == (many.held_bytes, many.size_bytes, many.models)
    assert all(one.pieces) or list(one.pieces) == [b""]


_keys = json_texts.keys("stream_options", "model")
_values = json_texts.values(_keys)
_bodies = st.dictionaries(_keys.filter(lambda key: key != "stream_options"), _values, max_size=6)
_options = st.none() | st.dictionaries(json_texts.texts, _values, max_size=3)


@given(st.data(), _bodies)
def test_the_option_is_added_and_nothing_else_changes(data: st.DataObject, body: dict[str, Any]) -> None:
    body = {"stream": True, **body}
    spliced = with_usage(data.draw(json_texts.written(body)), None, present=False)
    assert orjson.loads(spliced) == {**body, "stream_options": {"include_usage": True}}


@given(st.data(), _bodies, _options, st.integers(0, 6), st.integers(0, 20))
def test_an_option_that_is_there_is_replaced_in_place(
    data: st.DataObject, body: dict[str, Any], options: dict[str, Any] | None, place: int, cut: int
) -> None:
    items = list(body.items())
    items.insert(place, ("stream_options", options))
    whole = dict(items)
    spliced = with_usage(data.draw(json_texts.written(whole)), options, present=True, cut=cut)
    expected = {**whole, "stream_options": {**(options or {}), "include_usage": True}}
    assert orjson.loads(spliced) == expected


def test_the_clients_bytes_stay_as_they_were() -> None:
    body = b'{ "temperature": 1.0000000000000000001, "seed" :123456789012345678901234567890 }'
    assert with_usage(body, None, present=False).endswith(body[1:])


def test_every_duplicate_is_replaced_so_that_no_reader_sees_another() -> None:
    body = b'{"stream_options":null,"a":{"stream_options":1},"stream_options":{"include_usage":false}}'
    spliced = with_usage(body, {"include_usage": False}, present=True)
    asked = b'{"include_usage":true}'
    assert spliced == b'{"stream_options":%b,"a":{"stream_options":1},"stream_options":%b}' % (asked, asked)


def test_a_key_written_with_escapes_is_recognised() -> None:
    body = b'{"stream\\u005foptions": {}}'
    assert orjson.loads(with_usage(body, {}, present=True)) == {"stream_options": {"include_usage": True}}


def test_a_value_that_looks_like_the_key_is_left_alone() -> None:
    body = b'{"a":"stream_options","stream_options":null}'
    assert with_usage(body, None, present=True).startswith(b'{"a":"stream_options",')


def test_more_of_the_option_than_anybody_means_is_refused() -> None:
    with pytest.raises(BadRequest):
        option_places(b'{"stream_options":{"a":[%b1]}}' % (b"1," * 10_000))
    with pytest.raises(BadRequest):
        option_places(b"{%b}" % b",".join([b'"stream_options":null'] * (MOST_REPEATED + 1)))


def test_options_nested_deeper_than_json_is_written_are_refused() -> None:
    options = orjson.loads(b'{"x":' * 300 + b"1" + b"}" * 300)
    with pytest.raises(BadRequest) as caught:
        usage_edits(1, empty=False, options=options, places=[(5, 9)])
    assert caught.value.code == "invalid_json"


_texts = st.sampled_from(["model", '"model":1', "\\", '"', "{", "]", "mod\u0065l", ""]) | st.text(max_size=5)
_raw_values = st.recursive(
    _texts | st.integers(-5, 5) | st.none(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_texts, inner, max_size=3),
    max_leaves=10,
)


@given(st.lists(st.tuples(_texts, _raw_values), max_size=6), st.sampled_from([None, 1]), st.booleans())
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
    assert text_places(body, [9], "ab") == [(10, 19)]
    assert text_places(body, [9], "b") == []
    assert text_places(b'{"model":1}', [9], "1") == []


@pytest.mark.parametrize(
    ("body", "found"),
    [
        (b'{"model":"m"}', b'"m"'),
        (b'{"a":{"b":[1]},"model" :\n "a\\"b" ,"x":"\\"model\\""}', b'"a\\"b"'),
        (b'{"model":1}', None),
        (b'{"x":"model","model":"m"}', None),
        (b'{"tools":[{"model":"x"}],"model":"m"}', None),
        (b'{"model":"x","model":"m"}', None),
        (b'{"tools":[{"model":"x"}],"mod\\u0065l":"m"}', None),
        (b'{"model":"x","\\u006dodel":"m"}', None),
    ],
)
def test_the_only_model_is_found_at_once(body: bytes, found: bytes | None) -> None:
    place = only_model(body)
    assert (None if place is None else body[slice(*place)]) == found


@given(st.dictionaries(_keys, _values, max_size=4), st.booleans())
def test_a_model_that_is_named_once_is_found_when_it_is_asked_for(
    members: dict[str, Any], escaped: bool
) -> None:
    whole = {**members, "model": "m"}
    body = json.dumps(whole, ensure_ascii=escaped).encode("utf-8", "surrogatepass")
    if not names_model_once(body):
        return
    held = RequestBody(body, None, len(body))
    held.names_model(None)
    other = held.again()
    at = body.index(b"{") + 1
    held.edit([(at, at, b'"stream_options":{},')])
    other.edit([(at, at, b'"x":{"model":"y"},')])
    for each in (held, other):
        assert each.models is not None
        assert [each.prefix[start:end] for start, end in each.models] == [b'"m"']


@given(st.dictionaries(_keys, _values, max_size=4), st.booleans())
def test_what_is_found_at_once_is_where_the_member_stands(members: dict[str, Any], escaped: bool) -> None:
    body = json.dumps({**members, "model": "m"}, ensure_ascii=escaped).encode("utf-8", "surrogatepass")
    place = only_model(body)
    assert place in (None, *text_places(body, top_values(body, "model"), "m"))
