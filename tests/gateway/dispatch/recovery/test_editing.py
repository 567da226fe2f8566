from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.dispatch.recovery import AnswerRecord, NotContinuable, RecordBudget
from gateway.dispatch.recovery.editing import TOKENS, Outline, outline_at_once
from tests.gateway.dispatch.recovery.going_on import read_progress
from tests.support import json_texts

_keys = json_texts.keys("messages", "max_tokens")
_values = json_texts.values(_keys)


@given(st.data(), st.dictionaries(_keys, _values | st.lists(_values, max_size=4), max_size=6), _values)
def test_members_and_elements_are_replaced_or_added_and_nothing_else_changes(
    data: st.DataObject, body: dict[str, Any], new: Any
) -> None:
    raw, names = data.draw(json_texts.written(body)), {name for name in body if len(name) < 20} | {"added"}
    outline = Outline(raw, frozenset(names))
    assert all(cost_us > 0 for cost_us in outline.find()), "zero would say that nothing is left"
    changes = {name: orjson.dumps(new) for name in names}
    assert orjson.loads(outline.with_members(changes)) == body | dict.fromkeys(names, new)
    for name in names & body.keys():
        if isinstance(body[name], list):
            items = body[name]
            assert orjson.loads(outline.with_another(name, orjson.dumps(new))) == [*items, new]
            if items:
                assert orjson.loads(outline.last(name)) == items[-1]
                assert orjson.loads(outline.with_last(name, orjson.dumps(new))) == [*items[:-1], new]


def test_every_duplicate_is_replaced_so_that_no_reader_sees_another() -> None:
    raw = b'{"a":1,"b":{"a":2},"a" : 3 }'
    assert outline_at_once(raw, "a").with_members({"a": b"0"}) == b'{"a":0,"b":{"a":2},"a" :0}'


def test_of_a_message_no_more_is_gone_through_than_one_slice() -> None:
    few, many = (b'{"content":"Hi","n":[%b1]}' % (b"1," * count) for count in (1000, TOKENS))
    assert outline_at_once(few, "content").with_members({"content": b'"Ho"'}).startswith(b'{"content":"Ho"')
    with pytest.raises(NotContinuable, match="too many values"):
        outline_at_once(many, "content")


def test_what_the_client_wrote_stays_byte_for_byte_but_for_what_continuing_changes() -> None:
    body = (
        b'{ "temperature": 1.0000000000000000001, "seed" :123456789012345678901234567890, "x":1e-400,\n'
        b'  "messages" : [ {"content": "Hi \\u00e9", "role":"user", "n": 10000000000000000000000} ],'
        b' "max_tokens" : 10, "x": 2.50 }'
    )
    record = AnswerRecord("chat", RecordBudget())
    record.feed(b'data: {"id":"a","choices":[{"index":0,"delta":{"content":"Yes \\"\\u00e9"}}]}\n\n')
    asked = read_progress("chat", body, record).continued_request("final_message")
    expected = body.replace(b'"max_tokens" : 10', b'"max_tokens" :9').replace(
        b"000} ]", b'000} ,{"role":"assistant","content":"Yes \\"\xc3\xa9"}]'
    )
    added = b'"continue_final_message":true,"add_generation_prompt":false,"continued_max_tokens":10,'
    assert asked == b"{" + added + expected[1:]
