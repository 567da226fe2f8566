"""Chat completions as Anthropic's messages."""

from typing import Any

import pytest

from agent.engines.dialects.chat import ChatChunkReader
from agent.engines.dialects.dialect import ChatAnswer, ChatUsage, ToolCallPiece
from agent.engines.dialects.messages_answer import MessageWriter, error_body, tool_input
from shared.process.server_sent_events import each_event
from tests.agent.engines.dialects.streams import CHUNKS, stream


def events(chunks: list[dict[str, Any]], **request: Any) -> list[dict[str, Any]]:
    reader = ChatChunkReader(MessageWriter({"model": "m", **request}).events())
    written = list(each_event(reader.feed(stream(chunks)) + reader.finish()))
    values = [event.value() or {} for event in written]
    assert [event.name for event in written] == [value["type"] for value in values]
    return values


def test_blocks_follow_each_other_even_where_calls_do_not() -> None:
    values = events(CHUNKS)
    starts = [value["content_block"] for value in values if value["type"] == "content_block_start"]
    assert [block["type"] for block in starts] == ["thinking", "text", "tool_use", "tool_use"]
    assert [(block["id"], block["name"]) for block in starts[2:]] == [("c1", "f"), ("c2", "g")]
    order = [(value["type"], value["index"]) for value in values if "index" in value]
    assert [index for _, index in order] == sorted(index for _, index in order), "one block after the other"
    assert sum(kind == "content_block_stop" for kind, _ in order) == 4
    arguments = ["", ""]
    for value in values:
        if value["type"] == "content_block_delta" and value["delta"]["type"] == "input_json_delta":
            arguments[value["index"] - 2] += value["delta"]["partial_json"]
    assert arguments == ['{"a":1}', "{}"]
    assert values[-2]["delta"]["stop_reason"] == "tool_use"
    assert values[-2]["usage"]["input_tokens"] == 3
    assert values[-2]["usage"]["cache_read_input_tokens"] == 2
    assert values[-1] == {"type": "message_stop"}


def test_an_empty_answer_is_a_message_with_an_empty_text() -> None:
    kinds = [v["type"] for v in events([{"choices": [{"delta": {}, "finish_reason": "stop"}]}])]
    assert kinds == [
        "message_start",
        "content_block_start",
        "content_block_stop",
        "message_delta",
        "message_stop",
    ]


def test_an_answer_in_one_piece() -> None:
    call = ToolCallPiece(0, "c", "f", '{"a":1}')
    answer = ChatAnswer("t", "r", [call], "stop", None, ChatUsage(4, 2, 1))
    whole = MessageWriter({"model": "m"}).whole(answer)
    assert [block["type"] for block in whole["content"]] == ["thinking", "text", "tool_use"]
    assert whole["content"][2]["input"] == {"a": 1}
    assert (whole["stop_reason"], whole["usage"]["output_tokens"]) == ("tool_use", 2)


@pytest.mark.parametrize(
    ("finish", "stop", "reason"),
    [
        ("stop", None, "end_turn"),
        ("stop", "X", "stop_sequence"),
        ("stop", "Y", "end_turn"),
        ("length", None, "max_tokens"),
        ("content_filter", None, "refusal"),
    ],
)
def test_stop_reasons(finish: str, stop: str | None, reason: str) -> None:
    writer = MessageWriter({"stop_sequences": ["X"]})
    assert writer.whole(ChatAnswer("t", finish=finish, stop=stop))["stop_reason"] == reason


def test_arguments_that_are_no_object_are_kept() -> None:
    assert tool_input("") == {}
    assert tool_input("[1]") == {"INVALID_JSON": "[1]"}
    assert tool_input('{"a') == {"INVALID_JSON": '{"a'}


@pytest.mark.parametrize(
    ("status", "kind"), [(400, "invalid_request_error"), (429, "rate_limit_error"), (500, "api_error")]
)
def test_errors_have_anthropics_shape(status: int, kind: str) -> None:
    body = error_body(status, {"message": "no", "code": "c"})
    assert body == {"type": "error", "error": {"type": kind, "message": "no", "code": "c"}}
