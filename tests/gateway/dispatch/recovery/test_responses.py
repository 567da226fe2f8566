"""The Responses API: cut anywhere, gone on with elsewhere, the answer is the undisturbed one."""

from dataclasses import replace
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.dispatch.recovery import NotContinuable, SpliceFailed
from tests.gateway.dispatch.recovery import engines, going_on
from tests.gateway.dispatch.recovery.cut_streams import StreamKind
from tests.gateway.dispatch.recovery.engines import Model, Style
from tests.gateway.dispatch.recovery.going_on import Client, seen_in_responses

TOKENS = ("Once", " upon", "\n\n", ' a "time"', " 🚂", " ", "\\n", " é", " end")
MODEL = Model(TOKENS)
ONE = Style(model="m")
OTHER = Style(id="two", model="m-other", created=9, crlf=True)
KIND = StreamKind("responses", engines.responses, seen_in_responses)


def _body(**more: Any) -> dict[str, Any]:
    return {"model": "m", "stream": True, "input": "Hi", **more}


@pytest.mark.parametrize("limit", [5, None])
@pytest.mark.parametrize("way", ["prefill", "final_message"])
@pytest.mark.parametrize("style", [ONE, replace(ONE, crlf=True)])
def test_cut_at_every_byte_the_answer_is_the_undisturbed_one(
    style: Style, way: str, limit: int | None
) -> None:
    body = _body(max_output_tokens=limit)
    assert KIND.whole(MODEL, body, style).text == "".join(TOKENS[:limit])
    KIND.check_every_cut(MODEL, body, style, way, OTHER)


@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_cut_three_times_in_any_pieces_and_any_text_it_is_the_same(data: st.DataObject) -> None:
    body = _body(max_output_tokens=data.draw(st.integers(1, 10)))
    KIND.check_three_cuts(
        data, body, [ONE, OTHER], "prefill", most_bytes=1500, after=b"event: response.in_progress"
    )


def _cut_after(text: str, body: dict[str, Any] | None = None, way: str = "prefill") -> Client:
    body = _body() if body is None else body
    stream = engines.responses(MODEL, body, ONE)
    client = Client("responses", body, way)
    client.feed(stream[: stream.index(text.encode()) + 40])
    return client


def test_the_request_keeps_the_clients_input_and_gets_the_answers_item() -> None:
    given = [
        {"role": "user", "content": "Hi"},
        {"type": "function_call_output", "call_id": "c", "output": "1"},
    ]
    client = _cut_after("🚂", _body(input=given))

    def engine(asked: dict[str, Any]) -> bytes:
        assert asked["input"][:-1] == given
        assert asked["input"][-1]["id"] == "msg_one"
        return engines.responses(MODEL, asked, OTHER)

    client.go_on(engine)
    assert seen_in_responses(client.got).text == "".join(TOKENS)


def test_what_the_client_let_the_answer_begin_with_is_written_on() -> None:
    part = {"type": "output_text", "text": "Well:", "annotations": []}
    item = {"type": "message", "id": "m", "role": "assistant", "status": "incomplete", "content": [part]}
    client = _cut_after("🚂")
    client.body = orjson.dumps(_body(input=[{"role": "user", "content": "Hi"}, item]))

    def engine(asked: dict[str, Any]) -> bytes:
        assert len(asked["input"]) == 2
        return engines.responses(Model(("Well:", *TOKENS)), asked, OTHER)

    client.go_on(engine)
    assert seen_in_responses(client.got).text == "".join(TOKENS)


def test_a_head_that_the_engine_repeats_goes_once() -> None:
    client = _cut_after("🚂")
    client.go_on(lambda asked: engines.responses(MODEL, asked, replace(OTHER, echoes=True)))
    assert seen_in_responses(client.got).text == "".join(TOKENS)


def test_usage_is_exact_when_the_engine_says_what_it_continued() -> None:
    client = Client("responses", _body(), "final_message")
    stream = engines.responses(MODEL, _body(), replace(ONE, batch=3))
    client.feed(stream[: stream.index(b"time")])
    client.go_on(lambda asked: engines.responses(MODEL, asked, replace(OTHER, tells_continued=True)))
    total = engines.PROMPT_TOKENS + len(TOKENS)
    assert seen_in_responses(client.got).usage == [(engines.PROMPT_TOKENS, len(TOKENS), total)]
    assert b"continued_tokens" not in client.got


def test_a_function_call_after_the_text_gets_the_next_place() -> None:
    client = _cut_after("🚂", way="final_message")
    call = {"type": "function_call", "id": "fc", "call_id": "c", "name": "f", "arguments": "{}"}
    style = Style()
    response: dict[str, Any] = {"id": "two", "status": "completed", "output": [call]}
    stream: list[dict[str, Any]] = [
        {"type": "response.output_item.added", "output_index": 0, "item": call},
        {"type": "response.function_call_arguments.done", "output_index": 0, "arguments": "{}"},
        {"type": "response.output_item.done", "output_index": 0, "item": call},
        {"type": "response.completed", "response": response},
    ]
    client.go_on(lambda asked: b"".join(style.event(event) for event in stream))
    got = [(value or {}) for value in going_on.events(client.got)]
    assert [value["output_index"] for value in got[-5:-1]] == [0, 1, 1, 1]
    assert [item["type"] for item in got[-1]["response"]["output"]] == ["message", "function_call"]
    assert got[-1]["response"]["id"] == "one"
    assert [value["sequence_number"] for value in got] == list(range(len(got)))


@pytest.mark.parametrize(
    ("body", "event", "why"),
    [
        ({"previous_response_id": "r"}, None, "previous_response_id"),
        ({"conversation": "c"}, None, "conversation"),
        ({"store": True}, None, "store"),
        ({"background": True}, None, "background"),
        ({"text": {"format": {"type": "json_schema"}}}, None, "schema"),
        ({"include": ["message.output_text.logprobs"]}, None, "logprobs"),
        ({"tools": [{"type": "web_search"}]}, None, "runs itself"),
        ({"truncation": "auto"}, None, "truncation"),
        ({}, {"type": "error", "message": "x"}, "something else"),
        ({}, {"type": "response.refusal.delta", "output_index": 0, "content_index": 0}, "more than text"),
        ({}, {"type": "response.output_item.added", "output_index": 1, "item": {}}, "more than one"),
        ({}, {"type": "response.content_part.added", "output_index": 0, "content_index": 1}, "more than one"),
        ({}, {"type": "response.reasoning_text.delta", "output_index": 0, "delta": "x"}, "more than text"),
    ],
)
def test_what_cannot_go_on_soundly_is_refused(
    body: dict[str, Any], event: dict[str, Any] | None, why: str
) -> None:
    stream = engines.responses(MODEL, _body(), ONE)
    client = Client("responses", _body(**body), "prefill")
    client.feed(stream[: stream.index(b"event: response.output_text.done")])
    client.feed(Style().event(event) if event else b"")
    with pytest.raises(NotContinuable, match=why):
        client.go_on(lambda asked: b"")


def test_reasoning_that_came_first_is_refused() -> None:
    client = Client("responses", _body(), "prefill")
    item = {"type": "reasoning", "id": "r"}
    client.feed(Style().event({"type": "response.output_item.added", "output_index": 0, "item": item}))
    with pytest.raises(NotContinuable, match="more than text"):
        client.go_on(lambda asked: b"")


@pytest.mark.parametrize(
    "event",
    [
        {"type": "error", "message": "x"},
        {"type": "response.failed", "response": {}},
        {"type": "response.output_item.added", "output_index": 0, "item": {"type": "reasoning"}},
        {"type": "response.content_part.added", "output_index": 0, "part": {"type": "refusal"}},
        {"type": "response.output_text.delta", "output_index": 0, "delta": 1},
        {"type": "response.output_text.delta", "delta": "x"},
        {"type": "response.completed"},
        {"type": "response.completed", "response": {"output": [{"type": "reasoning"}]}},
        {"no": "type"},
    ],
)
def test_a_continuation_of_an_unexpected_shape_is_not_joined(event: dict[str, Any]) -> None:
    client = _cut_after("🚂", way="final_message")
    with pytest.raises(SpliceFailed):
        client.go_on(lambda asked: Style().event(event))
