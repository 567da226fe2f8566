"""Chat completions as responses, held against the types of OpenAI's SDK."""

from typing import Any

import pytest
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

from agent.engines.dialects.chat import ChatChunkReader
from agent.engines.dialects.dialect import ChatAnswer, ChatUsage, ToolCallPiece
from agent.engines.dialects.responses_answer import ResponseWriter, error_body
from shared.process.server_sent_events import each_event
from tests.agent.engines.dialects.streams import CHUNKS, stream

_EVENT: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)
ANSWER = ChatAnswer("t", "r", [ToolCallPiece(0, "c", "f", "{}")], "tool_calls", None, ChatUsage(4, 2, 1))


def events(chunks: list[dict[str, Any]]) -> list[dict[str, Any]]:
    reader = ChatChunkReader(ResponseWriter({"model": "m"}).events())
    values = [event.value() or {} for event in each_event(reader.feed(stream(chunks)) + reader.finish())]
    for number, value in enumerate(values):
        _EVENT.validate_python(value)
        assert value["sequence_number"] == number
    return values


def test_every_event_is_one_of_the_sdk_and_the_last_holds_all_items() -> None:
    values = events(CHUNKS)
    added = [value["item"]["id"] for value in values if value["type"] == "response.output_item.added"]
    done = {value["item"]["id"] for value in values if value["type"] == "response.output_item.done"}
    output = values[-1]["response"]["output"]
    assert [item["type"] for item in output] == ["reasoning", "message", "function_call", "function_call"]
    assert [item["id"] for item in output] == added
    assert done == set(added)
    assert [item["arguments"] for item in output[2:]] == ['{"a":1}', "{}"]
    assert values[-1]["response"]["usage"]["input_tokens_details"]["cached_tokens"] == 2


def test_an_answer_cut_by_its_length_is_incomplete() -> None:
    values = events([{"choices": [{"delta": {"content": "a"}, "finish_reason": "length"}]}])
    assert values[-1]["type"] == "response.incomplete"
    assert values[-1]["response"]["incomplete_details"] == {"reason": "max_output_tokens"}
    assert values[-1]["response"]["output"][0]["status"] == "incomplete"


def test_only_the_last_item_of_an_answer_that_is_cut_is_incomplete() -> None:
    cut = {"choices": [{"index": 0, "delta": {}, "finish_reason": "length"}]}
    values = events([*CHUNKS[:-2], cut])
    output = values[-1]["response"]["output"]
    done = {v["item"]["id"]: v["item"] for v in values if v["type"] == "response.output_item.done"}
    assert [done[item["id"]] for item in output] == output
    calls = [ToolCallPiece(0, "c1", "f", '{"a":1}'), ToolCallPiece(1, "c2", "g", "{}")]
    whole = ResponseWriter({"model": "m"}).whole(ChatAnswer("ab", "hm", calls, "length"))
    for items in (output, whole["output"]):
        assert [item["status"] for item in items] == [*["completed"] * 3, "incomplete"]


def test_an_engine_that_breaks_off_makes_a_failed_response() -> None:
    values = events([{"error": {"message": "broken"}}])
    assert values[-1]["type"] == "response.failed"
    assert values[-1]["response"]["error"]["message"] == "broken"


def test_an_answer_in_one_piece_is_a_response_of_the_sdk() -> None:
    request = {"model": "m", "instructions": "i", "tools": [], "temperature": 0.5, "metadata": {"a": "b"}}
    whole = ResponseWriter(request, now=lambda: 7.0).whole(ANSWER)
    response = Response.model_validate(whole)
    assert response.output_text == "t"
    assert [item.type for item in response.output] == ["reasoning", "message", "function_call"]
    assert (response.status, response.created_at, response.temperature) == ("completed", 7, 0.5)
    assert response.usage is not None
    assert response.usage.total_tokens == 6


@pytest.mark.parametrize(("finish", "status"), [("stop", "completed"), ("length", "incomplete")])
def test_status_follows_the_finish_reason(finish: str, status: str) -> None:
    assert ResponseWriter({"model": "m"}).whole(ChatAnswer("t", finish=finish))["status"] == status


def test_errors_keep_openais_shape() -> None:
    assert error_body(400, {"message": "no"}) == {"error": {"message": "no"}}
