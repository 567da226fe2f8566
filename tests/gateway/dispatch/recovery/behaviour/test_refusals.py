"""What cannot go on soundly is refused with a reason; what was not begun, or is whole, never is."""

from typing import Any

import orjson
import pytest

from gateway.dispatch.recovery import (
    AnswerRecord,
    ContinuationReading,
    NotContinuable,
    RecordBudget,
    SpliceFailed,
)
from gateway.dispatch.recovery.events import DONE, written
from gateway.dispatch.recovery.original_request import MOST_MARKS
from gateway.dispatch.recovery.reading import MOST_EVENTS
from tests.gateway.dispatch.recovery.going_on import read_progress

CHAT = {"model": "m", "stream": True, "messages": [{"role": "user", "content": "Hi"}]}
COMPLETION = {"model": "m", "stream": True, "prompt": "Hi", "max_tokens": 50}


def _chat(delta: dict[str, Any], reason: str | None = None, **more: Any) -> bytes:
    choice = {"index": 0, "delta": delta, "finish_reason": reason, **more}
    return written({"id": "one", "created": 1, "model": "m", "choices": [choice]})


def _completion(text: str, **more: Any) -> bytes:
    return written({"id": "one", "choices": [{"index": 0, "text": text, "finish_reason": None, **more}]})


BEGUN = _chat({"role": "assistant", "content": ""}) + _chat({"content": "Well"})


def _record(route: str, *data: bytes) -> AnswerRecord:
    record = AnswerRecord(route, RecordBudget())
    for chunk in data:
        record.feed(chunk)
    return record


def _refused(route: str, body: dict[str, Any], *data: bytes, way: str = "final_message") -> str:
    with pytest.raises(NotContinuable) as refusal:
        read_progress(route, orjson.dumps(body), _record(route, *data)).continued_request(way)
    return str(refusal.value)


@pytest.mark.parametrize(
    "asked",
    [
        {"n": 2},
        {"best_of": 2},
        {"use_beam_search": True},
        {"logprobs": True},
        {"top_logprobs": 2},
        {"prompt_logprobs": 1},
        {"return_token_ids": True},
        {"echo": True},
        {"presence_penalty": 0.5},
        {"frequency_penalty": -0.5},
        {"logits_processors": ["x"]},
        {"response_format": {"type": "json_object"}},
        {"response_format": {"type": "json_schema", "json_schema": {}}},
        {"structured_outputs": {"regex": "x"}},
        {"guided_json": {}},
        {"guided_regex": "x"},
        {"grammar": "root"},
        {"regex": "x"},
        {"stop_regex": "x"},
        {"truncate_prompt_tokens": 5},
        {"tool_choice": "required", "tools": [{"type": "function"}]},
        {"tool_choice": {"type": "function", "function": {"name": "f"}}},
        {"function_call": {"name": "f"}},
        {"modalities": ["text", "audio"]},
        {"audio": {"voice": "x"}},
        {"continue_final_message": "content"},
    ],
)
def test_requests_that_steer_an_answer_from_its_beginning_are_refused(asked: dict[str, Any]) -> None:
    reason = _refused("chat", CHAT | asked, BEGUN)
    assert any(name in reason for name in asked) or "grammar" in reason or "demands" in reason


@pytest.mark.parametrize(
    "asked",
    [
        {"n": 1, "best_of": 1, "logprobs": False, "top_logprobs": None, "echo": False, "presence_penalty": 0},
        {"response_format": {"type": "text"}, "modalities": ["text"], "tool_choice": "auto", "tools": []},
        {
            "tools": [{"type": "function", "function": {"name": "f"}}],
            "temperature": 1.3,
            "seed": 7,
            "top_k": 5,
        },
        {"repetition_penalty": 1.1, "logit_bias": {"5": 1}, "stop": ["\n\n"], "user": "u", "unknown": [1]},
    ],
)
def test_requests_that_do_not_are_not(asked: dict[str, Any]) -> None:
    progress = read_progress("chat", orjson.dumps(CHAT | asked), _record("chat", BEGUN))
    added = {"continue_final_message": True, "add_generation_prompt": False}
    turn = {"role": "assistant", "content": "Well"}
    assert orjson.loads(progress.continued_request("final_message")) == {
        **CHAT,
        **asked,
        **added,
        "messages": [*CHAT["messages"], turn],  # type: ignore[misc]
    }


@pytest.mark.parametrize(
    ("event", "why"),
    [
        (_chat({"tool_calls": [{"index": 0, "id": "c"}]}), "tool calls"),
        (_chat({"function_call": {"name": "f"}}), "function call"),
        (_chat({"reasoning_content": "hm"}), "reasoning"),
        (_chat({"reasoning": "hm"}), "reasoning"),
        (_chat({"refusal": "no"}), "refusal"),
        (_chat({"audio": {"id": "a"}}), "audio"),
        (_chat({"content": [{"type": "text"}]}), "not text"),
        (_chat({"content": "x"}, logprobs={"content": []}), "logprobs"),
        (_chat({"content": "x"}, token_ids=[1]), "tokens"),
        (_chat({"content": "x"}, index=1), "several answers"),
        (_chat({"content": "x"}, index="0"), "something else"),
        (_chat({"content": "<think>"}), "reasoning"),
        (written({"error": {"message": "out of memory"}}), "something else"),
        (written({"choices": [], "error": {"message": "out of memory"}}), "something else"),
        (written({"choices": ["x"]}), "something else"),
        (written({"choices": [{"index": 0, "delta": "x"}]}), "something else"),
        (written(["x"]), "something else"),
        (b"data: not JSON\n\n", "something else"),
    ],
)
def test_answers_of_more_than_text_are_refused(event: bytes, why: str) -> None:
    assert why in _refused("chat", CHAT, BEGUN, event)


@pytest.mark.parametrize("prompt", [["a", "b"], [1, 2], [[1, 2]], None])
def test_completions_of_other_than_one_text_are_refused(prompt: Any) -> None:
    assert "not one text" in _refused(
        "completions", COMPLETION | {"prompt": prompt}, _completion("W"), way="prompt"
    )


def test_completions_with_a_suffix_are_refused() -> None:
    assert "suffix" in _refused("completions", COMPLETION | {"suffix": "x"}, _completion("W"), way="prompt")


def test_a_list_of_one_prompt_is_one_text() -> None:
    record = _record("completions", _completion("W"))
    body = read_progress(
        "completions", orjson.dumps(COMPLETION | {"prompt": ["Hi"]}), record
    ).continued_request("prompt")
    assert orjson.loads(body) == COMPLETION | {"prompt": ["HiW"], "max_tokens": 49}


def test_ways_that_do_not_fit_the_route_are_refused() -> None:
    assert "way" in _refused("chat", CHAT, BEGUN, way="prompt")
    assert "way" in _refused("completions", COMPLETION, _completion("W"), way="prefill")


@pytest.mark.parametrize(
    ("body", "why"),
    [(b"", "not kept"), (b"[]", "not kept"), (b'{"messages', "not kept"), (b"{}", "messages")],
)
def test_a_request_that_was_not_kept_is_refused(body: bytes, why: str) -> None:
    with pytest.raises(NotContinuable, match=why):
        read_progress("chat", body, _record("chat", BEGUN)).continued_request("prefill")


def test_other_routes_are_refused() -> None:
    with pytest.raises(NotContinuable, match="embeddings"):
        read_progress("embeddings", b"{}", _record("embeddings", BEGUN))


def test_an_answer_too_large_to_be_kept_is_refused() -> None:
    record = AnswerRecord("chat", RecordBudget(), 10)
    record.feed(BEGUN)
    with pytest.raises(NotContinuable, match="too large"):
        read_progress("chat", orjson.dumps(CHAT), record)


@pytest.mark.parametrize(
    "asked", [{"n": 2}, {"logprobs": True}, {"response_format": {"type": "json_object"}}]
)
def test_a_whole_answer_is_closed_whatever_it_is(asked: dict[str, Any]) -> None:
    ends = [
        _chat({"tool_calls": [{"index": 0}]}),
        _chat({}, "tool_calls"),
        _chat({}, "stop", index=1),
    ]
    record = _record("chat", BEGUN, *ends)
    progress = read_progress("chat", orjson.dumps(CHAT | asked), record)
    assert (progress.finished, progress.closing) == (True, DONE)
    record = _record("chat", BEGUN, *ends, DONE)
    assert read_progress("chat", orjson.dumps(CHAT | asked), record).closing == b""


def test_of_two_answers_both_must_be_whole() -> None:
    assert "several" in _refused("chat", CHAT | {"n": 2}, BEGUN, _chat({}, "stop", index=1))


def test_a_text_that_may_hold_what_the_client_began_it_with_is_refused() -> None:
    messages = [*CHAT["messages"], {"role": "assistant", "content": "Well, "}]  # type: ignore[misc]
    for said in ("W", "Well, yes"):
        record = _record("chat", _chat({"content": said}))
        progress = read_progress("chat", orjson.dumps(CHAT | {"messages": messages}), record)
        with pytest.raises(NotContinuable, match="twice"):
            progress.continued_request("prefill")


@pytest.mark.parametrize(
    "event",
    [
        written({"error": {"message": "x"}}),
        written({"choices": [], "error": {"message": "x"}}),
        b"data: {\n\n",
        written({"id": "x"}),
        _chat({"content": "x"}, index=1),
        _chat({"content": 1}),
        _chat({"reasoning_content": "x"}),
        _chat({"refusal": "x"}),
        written({"choices": [{"index": 0, "delta": {}}] * 2}),
        written({"choices": ["x"]}),
        b"data: " + b"x" * (4 * 1024 * 1024 + 1),
    ],
)
def test_a_continuation_of_an_unexpected_shape_is_not_joined(event: bytes) -> None:
    progress = read_progress("chat", orjson.dumps(CHAT), _record("chat", BEGUN))
    progress.continued_request("final_message")
    splicer = progress.splicer()
    with pytest.raises(SpliceFailed):
        splicer.feed(event)


def test_a_stop_string_across_the_seam_is_not_joined() -> None:
    body = orjson.dumps(CHAT | {"stop": ["ll\nEND", "other"]})
    for pieces, sound in ((["\nE", "ND"], False), (["\nE", "NOUGH"], True), (["\nEN"], True)):
        progress = read_progress("chat", body, _record("chat", BEGUN))
        progress.continued_request("final_message")
        splicer = progress.splicer()
        out = splicer.feed(_chat({"role": "assistant", "content": pieces[0]}))
        assert out == b""
        rest = b"".join(_chat({"content": piece}) for piece in pieces[1:]) + _chat({}, "stop") + DONE
        if sound:
            assert "".join(pieces).encode().replace(b"\n", b"\\n") in splicer.feed(rest)
        else:
            with pytest.raises(SpliceFailed, match="stop string"):
                splicer.feed(rest)


def test_a_completion_of_several_prompts_is_not_whole_when_the_first_of_them_is() -> None:
    begun = _completion("W") + _completion("W", index=1)
    ended = _completion("", finish_reason="stop")
    body = orjson.dumps(COMPLETION | {"prompt": ["a", "b"]})
    with pytest.raises(NotContinuable):
        read_progress("completions", body, _record("completions", begun, ended), usage_wanted=False)
    both = _record("completions", begun, ended, _completion("", index=1, finish_reason="stop"))
    assert read_progress("completions", body, both, usage_wanted=False).closing == DONE


def test_what_would_take_long_to_read_is_refused() -> None:
    wide = CHAT | {"metadata": [[]] * MOST_MARKS}
    assert _refused("chat", wide, BEGUN) == "the request has too many values"
    many = _chat({"content": "a"}) * (MOST_EVENTS + 1)
    record = AnswerRecord("chat", RecordBudget(), most_bytes=len(many))
    record.feed(many)
    with pytest.raises(NotContinuable) as refusal:
        read_progress("chat", orjson.dumps(CHAT), record)
    assert str(refusal.value) == f"the answer has more than {MOST_EVENTS} events"


@pytest.mark.parametrize(
    ("asked", "reason"),
    [
        ({str(number): 1 for number in range(1001)}, "too many members"),
        ({"metadata": [0] * 70_000}, "too many values"),
        ({"metadata": [{str(n): 1 for n in range(40)}] * 1000}, "too many values"),
        ({"tools": [{"type": "function"}] * 4097}, "more than 4096 tools"),
        ({"stop": ["ab"] * 1025}, "more stop strings"),
        ({"stop": "a" * 4097}, "more stop strings"),
    ],
)
def test_a_request_that_takes_long_to_go_through_is_refused(asked: dict[str, Any], reason: str) -> None:
    with pytest.raises(NotContinuable, match=reason):
        read_progress("chat", orjson.dumps(CHAT | asked), _record("chat", BEGUN))


def test_a_long_beginning_by_the_client_is_refused() -> None:
    messages = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "a" * 300_000}]
    body = orjson.dumps(CHAT | {"messages": messages, "continue_final_message": True})
    with pytest.raises(NotContinuable, match="too long"):
        read_progress("chat", body, _record("chat", BEGUN)).continued_request("final_message")


def test_reading_goes_on_where_it_stopped_and_says_so() -> None:
    record = _record("chat", *[BEGUN] * 500)
    reading = ContinuationReading("chat", orjson.dumps(CHAT), record)
    steps = 0
    while reading.step():
        steps += 1
    assert steps > 5
    assert reading.nearly_done
    before = reading.progress()
    record.feed(BEGUN * 300)
    assert not reading.nearly_done
    after = reading.progress()
    assert (before.tokens, after.tokens) == (500, 800), "what was found before stays as it was"
    assert after.text == read_progress("chat", orjson.dumps(CHAT), record).text
