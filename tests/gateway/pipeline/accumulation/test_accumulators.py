"""Streamed answers put together are what the same engine says in one piece; anything unknown is refused."""

from collections.abc import Mapping
from typing import Any

import orjson
import pytest

from gateway.pipeline.accumulation.accumulators import ACCUMULATORS, NotAccumulable
from shared.process.server_sent_events import ServerSentEvent, each_event
from tests.support.scripted_engine import Script
from tests.support.scripted_engine.answers import UNARY
from tests.support.scripted_engine.planned import plan
from tests.support.scripted_engine.streams import STREAMED

ASKED: Mapping[str, dict[str, Any]] = {
    "chat": {"messages": [{"role": "user", "content": "Hi"}]},
    "completions": {"prompt": "Hi"},
    "messages": {"messages": [{"role": "user", "content": "Hi"}]},
    "responses": {"input": "Hi"},
}


def put_together(route: str, *events: Mapping[str, Any] | bytes) -> dict[str, Any]:
    accumulator = ACCUMULATORS[route]()
    for event in events:
        accumulator.feed(ServerSentEvent(event if isinstance(event, bytes) else orjson.dumps(event)))
    return accumulator.answer()


DEEP = b"[" * 1000 + b"]" * 1000
"""Deeper than Python writes a list, and less deep than JSON is read."""
DEEP_DELTA = b'{"type":"content_block_delta","index":0,"delta":{"type":%b}}' % DEEP


def fixed_id(prefix: str) -> str:
    return f"{prefix}-1"


@pytest.mark.parametrize("route", [*ASKED])
@pytest.mark.parametrize("script", [Script(tokens=5), Script(ends_after=3), Script(tokens=0)])
def test_a_stream_put_together_is_the_answer_in_one_piece(
    route: str, script: Script, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("time.time", lambda: 1_800_000_000.0)
    body = {"model": "m", "stream_options": {"include_usage": True}, **ASKED[route]}
    planned = plan(route, body, script)
    streamed = STREAMED[route](body, planned, script, fixed_id)
    data = streamed.opening()
    data += b"".join(streamed.chunk(index, 0.0) for index in range(streamed.count)) + streamed.closing()
    accumulator = ACCUMULATORS[route]()
    for event in each_event(data):
        accumulator.feed(event)
    assert accumulator.answer() == UNARY[route](body, planned, fixed_id)


def chunk(delta: Mapping[str, Any], **more: Any) -> dict[str, Any]:
    return {
        "id": "c",
        "object": "chat.completion.chunk",
        "created": 7,
        "model": "m",
        "choices": [{"index": 0, "delta": delta, "finish_reason": None, **more}],
    }


USAGE = {"choices": [], "usage": {"prompt_tokens": 1, "completion_tokens": 2, "total_tokens": 3}}
END = chunk({}, finish_reason="stop")


def test_reasoning_refusals_and_what_engines_add_are_kept() -> None:
    answer = put_together(
        "chat",
        chunk({"role": "assistant", "content": ""}, logprobs=None, token_ids=None)
        | {"system_fingerprint": "f", "obfuscation": "xyz"},
        chunk({"reasoning_content": "Let me "}),
        chunk({"reasoning_content": "see.", "tool_calls": []}),
        chunk({"content": "Good "}),
        chunk({"content": "day", "annotations": None}),
        chunk({}, finish_reason="stop", stop_reason=128009) | {"timings": {"predicted_n": 2}},
        USAGE,
        b"[DONE]",
    )
    (choice,) = answer["choices"]
    assert choice["message"] == {
        "role": "assistant",
        "content": "Good day",
        "refusal": None,
        "reasoning_content": "Let me see.",
    }
    assert (choice["finish_reason"], choice["stop_reason"], choice["logprobs"]) == ("stop", 128009, None)
    assert answer["object"] == "chat.completion"
    assert (answer["id"], answer["system_fingerprint"], answer["created"]) == ("c", "f", 7)
    assert answer["timings"] == {"predicted_n": 2}
    assert "obfuscation" not in answer
    assert answer["usage"] == USAGE["usage"]


def test_a_running_count_of_usage_ends_with_the_last() -> None:
    first = chunk({"content": "a"}) | {"usage": {"completion_tokens": 1}}
    assert put_together("chat", first, END | {"usage": {"completion_tokens": 2}})["usage"] == {
        "completion_tokens": 2
    }


@pytest.mark.parametrize(
    "events",
    [
        [chunk({"content": "a"}), USAGE],
        [chunk({"content": "a"}), END],
        [{"error": {"message": "no"}}],
        [b"no JSON"],
        [chunk({"tool_calls": [{"index": 0}]}), END, USAGE],
        [chunk({"content": ["a"]}), END, USAGE],
        [chunk({"content": "a"}, logprobs={"content": []}), END, USAGE],
        [{"choices": [{"index": 1, "delta": {"content": "a"}}]}, END, USAGE],
        [{"choices": [END["choices"][0]] * 2}, USAGE],
        [{"choices": None}, END, USAGE],
    ],
)
def test_chunks_that_are_not_understood_are_refused(events: list[Any]) -> None:
    with pytest.raises(NotAccumulable):
        put_together("chat", *events)


MESSAGE = {"type": "message_start", "message": {"id": "m", "content": [], "usage": {"input_tokens": 5}}}
MESSAGE_END = {
    "type": "message_delta",
    "delta": {"stop_reason": "end_turn", "stop_sequence": None},
    "usage": {"output_tokens": 9, "cache_read_input_tokens": None},
}


def begins(index: int, **block: Any) -> dict[str, Any]:
    return {"type": "content_block_start", "index": index, "content_block": block}


def goes_on(index: int, kind: str, **piece: Any) -> dict[str, Any]:
    return {"type": "content_block_delta", "index": index, "delta": {"type": kind, **piece}}


def test_blocks_of_thoughts_and_text_are_put_together() -> None:
    answer = put_together(
        "messages",
        MESSAGE,
        {"type": "ping"},
        begins(0, type="thinking", thinking="", signature=""),
        goes_on(0, "thinking_delta", thinking="Let me "),
        goes_on(0, "thinking_delta", thinking="see."),
        goes_on(0, "signature_delta", signature="s"),
        begins(1, type="text", text="Good"),
        goes_on(1, "text_delta", text=" day"),
        MESSAGE_END,
        {"type": "message_stop"},
    )
    assert answer["content"] == [
        {"type": "thinking", "thinking": "Let me see.", "signature": "s"},
        {"type": "text", "text": "Good day"},
    ]
    assert answer["usage"] == {"input_tokens": 5, "output_tokens": 9}
    assert answer["stop_reason"] == "end_turn"


@pytest.mark.parametrize(
    "events",
    [
        [],
        [MESSAGE],
        [MESSAGE_END],
        [MESSAGE, begins(0, type="tool_use"), MESSAGE_END],
        [MESSAGE, begins(1, type="text"), MESSAGE_END],
        [MESSAGE, goes_on(0, "text_delta", text="a"), MESSAGE_END],
        [MESSAGE, begins(0, type="text"), goes_on(0, "citations_delta", citation={}), MESSAGE_END],
        [MESSAGE, {"type": "error", "error": {"message": "no"}}],
        [MESSAGE, MESSAGE, MESSAGE_END],
        [MESSAGE, begins(0, type="text", text=5), goes_on(0, "text_delta", text="a"), MESSAGE_END],
        [MESSAGE, b'{"type":%b}' % DEEP, MESSAGE_END],
        [MESSAGE, begins(0, type="text"), DEEP_DELTA, MESSAGE_END],
    ],
)
def test_messages_that_are_not_understood_are_refused(events: list[Any]) -> None:
    with pytest.raises(NotAccumulable):
        put_together("messages", *events)


@pytest.mark.parametrize(
    "events",
    [
        [{"type": "response.created", "response": {}}],
        [{"type": "response.failed", "response": {"status": "failed"}}],
        [{"type": "response.completed", "response": {"id": "r"}}, {"type": "response.created"}],
    ],
)
def test_responses_that_failed_or_did_not_end_are_refused(events: list[Any]) -> None:
    with pytest.raises(NotAccumulable):
        put_together("responses", *events)
