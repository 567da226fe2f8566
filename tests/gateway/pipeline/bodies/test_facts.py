from typing import Any

import orjson
import pytest

from gateway.domain.errors import BadRequest
from gateway.domain.fingerprints import fingerprints
from gateway.domain.json_members import only_model
from gateway.pipeline.bodies.facts import (
    BYTES_PER_US,
    MOST_MEMBERS,
    SHORT_BYTES,
    SHORT_US,
    is_short,
    prompt_of,
    read_facts,
)


def body(**members: Any) -> bytes:
    return orjson.dumps({"model": "m", "messages": [{"role": "user", "content": "hi"}], **members})


def nested(levels: int) -> bytes:
    return b"[" * levels + b"]" * levels


def test_what_is_told_of_a_long_body_decides_the_same() -> None:
    members = {
        "stream": True,
        "max_tokens": 7,
        "options": {"num_predict": 9},
        "metadata": {"user_id": "u" * 10},
        "prompt": ["one", "two", "three"],
        "stream_options": {"include_usage": False},
        "tools": [{"type": "function", "function": {"name": "f" * 100}}] * 50,
    }
    here, told = read_facts(body(**members)), read_facts(body(**members), long=True)
    for name in ("prompt_bytes", "prefix", "prompts", "start", "options", "named"):
        assert getattr(here, name) == getattr(told, name)
    assert (here.models, told.models) == (None, (only_model(body(**members)),))
    assert told.prompts == 3
    for name in ("model", "stream", "max_tokens", "options", "metadata", "stream_options"):
        assert here.members[name] == told.members[name]


def test_long_texts_are_not_told() -> None:
    told = read_facts(body(prompt="x" * 10_000_000, input=["y" * 10_000] * 100), long=True)
    assert len(orjson.dumps(told.members)) < 100_000
    assert told.prompt_bytes > 10_000_000


@pytest.mark.parametrize("added", ["x" * 600, ["a", 1], {"a": {"b": {"c": {"d": 1}}}}])
def test_options_of_a_stream_are_told_whole_or_refused(added: object) -> None:
    """They are written into the body anew: what is not told would be lost to its engine."""
    raw = body(stream_options={"include_usage": False, "other": added})
    assert read_facts(raw).members["stream_options"]["other"] == added
    with pytest.raises(BadRequest) as caught:
        read_facts(raw, long=True)
    assert caught.value.param == "stream_options"


def test_of_options_for_each_prompt_none_is_left_out() -> None:
    sets = [{"max_new_tokens": 7}] * 30 + [{"other": "x" * 1000}]
    told = read_facts(body(sampling_params=sets, options={"num_predict": 3}), long=True).members
    assert told["sampling_params"][:30] == sets[:30]
    assert len(told["sampling_params"]) == 31
    assert told["options"] == {"num_predict": 3}


def test_what_is_told_of_a_long_body_is_bounded() -> None:
    with pytest.raises(BadRequest):
        read_facts(body(**{f"x{number}": [1] * 1000 for number in range(500)}), long=True)


def test_places_are_those_of_the_members_at_the_top() -> None:
    raw = b'{"tools":[{"model":"x"}],"model":"m","stream_options":null,"Model":1,"model":"m"}'
    facts = read_facts(raw)
    assert [raw[start:end] for start, end in facts.models or ()] == [b'"m"', b'"m"']
    assert [raw[start:end] for start, end in facts.options] == [b"null"]
    assert facts.named == 2


@pytest.mark.parametrize("member", ["tools", "messages", "prompt", "input", "system", "documents"])
@pytest.mark.parametrize("levels", [260, 900])
def test_a_prompt_nested_deeper_than_json_is_written_is_refused(member: str, levels: int) -> None:
    raw = b'{"model":"m","%b":%b}' % (member.encode(), nested(levels))
    for long in (False, True):
        with pytest.raises(BadRequest) as caught:
            read_facts(raw, long=long)
        assert (caught.value.code, caught.value.param) == ("invalid_json", member)


def test_other_members_may_be_nested_as_deep_as_json_is_read() -> None:
    raw = b'{"model":"m","metadata":%b}' % nested(900)
    assert read_facts(raw).members["model"] == "m"
    assert orjson.dumps(read_facts(raw, long=True).members)


def test_a_long_body_has_only_so_many_members() -> None:
    raw = b'{"model":"m"%b}' % b"".join(b',"%d":1' % number for number in range(MOST_MEMBERS))
    assert read_facts(raw).members["model"] == "m"
    with pytest.raises(BadRequest):
        read_facts(raw, long=True)


def test_a_body_of_text_is_short_up_to_its_length() -> None:
    most_bytes = SHORT_US * BYTES_PER_US
    assert is_short([b'{"prompt":"', b"x" * (most_bytes - 5000), b'"}'])
    assert not is_short([b"x" * most_bytes, b"x"])


@pytest.mark.parametrize(
    "unit",
    [
        *(b"[],", b"{},", b"[" * 200 + b"]" * 200 + b",", b'{"model":"x"},', b'{"m\\u006fdel":"x"},'),
        *(b'{"stream_options":1},', b'{"stream\\u005foptions":1},', b'{"a":1, "b" :2},'),
    ],
)
def test_a_body_of_much_structure_is_not_short(unit: bytes) -> None:
    raw = b'{"model":"m","tools":[' + unit * (65_536 // len(unit)) + b"1]}"
    assert orjson.loads(raw)
    assert not is_short([raw])
    assert is_short([raw[:SHORT_BYTES]]), "whatever is in it"


def test_ordinary_requests_are_short() -> None:
    code = """def add(a: int, b: int) -> dict[str, int]:\n    return {"sum": a + b, "of": [a, b]}\n\n"""
    prose = "The lamp, which stood at the window: nobody knew who had lit it. \u201cI did\u201d, she said.\n"
    tool = {"type": "function", "function": {"name": "f", "parameters": {"properties": {"x": {"type": "a"}}}}}
    for text, times in ((code, 500), (prose, 1000)):
        messages = [{"role": "user", "content": text * (times // 10)}] * 10
        assert is_short([orjson.dumps({"model": "m", "messages": messages, "tools": [tool] * 100})])


def test_what_is_counted_as_a_name_is_whatever_stands_before_it() -> None:
    unit = b'"a\\\\":1,'
    raw = b'{"model":"m","tools":[{' + unit * (65_536 // len(unit)) + b'"a":1}]}'
    assert orjson.loads(raw)
    assert not is_short([raw])


# --- Prompts ---

SYSTEM = {"role": "system", "content": "be terse " * 300}


def chain(**members: object) -> tuple[int, ...]:
    return fingerprints(prompt_of(members))


def test_a_conversation_that_goes_on_begins_as_before() -> None:
    first = [SYSTEM, {"role": "user", "content": "a" * 3000}]
    before = chain(messages=first)
    after = chain(messages=[*first, {"role": "assistant", "content": "b" * 5000}])
    assert len(before) > 4
    assert after[: len(before)] == before


def test_another_prompt_shares_what_is_equal() -> None:
    one = chain(messages=[SYSTEM, {"role": "user", "content": "a" * 3000}])
    other = chain(messages=[SYSTEM, {"role": "user", "content": "b" * 3000}])
    shared = sum(ours == theirs for ours, theirs in zip(one, other, strict=True))
    assert 0 < shared < len(one)


def test_what_is_no_prompt_makes_no_difference() -> None:
    messages = [SYSTEM]
    assert prompt_of({"temperature": 1, "user": "u", "messages": messages}) == prompt_of(
        {"messages": messages, "seed": 7, "model": "m"}
    )


def test_other_tools_or_instructions_make_another_prompt_from_its_first_block() -> None:
    tools = [{"type": "function", "function": {"name": "f" * 2000}}]
    assert chain(messages=[SYSTEM], tools=tools)[0] != chain(messages=[SYSTEM])[0]
    assert chain(input="x" * 2000, instructions="y" * 2000)[0] != chain(input="x" * 2000)[0]


def test_a_request_without_a_prompt_has_none() -> None:
    assert prompt_of({"model": "m", "file": "f"}) == b""
    assert chain(model="m") == ()


def test_what_engines_read_beside_the_prompt_counts() -> None:
    for name in ("context", "template", "suffix", "text_2", "data_1", "content"):
        assert len(prompt_of({"prompt": "x", name: [1] * 1000})) > 2000
