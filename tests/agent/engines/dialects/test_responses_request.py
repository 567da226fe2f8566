"""Requests of the Responses API as requests of chat completions."""

from typing import Any

import pytest
from openai.types.chat import completion_create_params
from pydantic import TypeAdapter

from agent.engines.dialects.dialect import Untranslatable
from agent.engines.dialects.responses_request import chat_request

BASE: dict[str, Any] = {"model": "m", "input": "hi"}
_SHAPE: TypeAdapter[Any] = TypeAdapter(completion_create_params.CompletionCreateParamsNonStreaming)


def checked(request: dict[str, Any]) -> dict[str, Any]:
    chat = chat_request(request)
    _SHAPE.validate_python({**chat, "stream": False})
    return chat


def test_a_text_with_instructions_and_a_limit() -> None:
    chat = checked(BASE | {"instructions": "be brief", "max_output_tokens": 5, "store": True, "metadata": {}})
    assert chat["messages"] == [{"role": "system", "content": "be brief"}, {"role": "user", "content": "hi"}]
    assert (chat["max_tokens"], set(chat)) == (5, {"model", "messages", "max_tokens"})


def test_items_become_messages_and_calls_belong_to_the_assistant() -> None:
    items = [
        {"role": "developer", "content": "b"},
        {"role": "user", "content": [{"type": "input_text", "text": "q"}]},
        {"type": "reasoning", "id": "r", "summary": []},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "a"}]},
        {"type": "function_call", "call_id": "1", "name": "f", "arguments": "{}"},
        {"type": "function_call", "call_id": "2", "name": "g", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "1", "output": "x"},
        {"type": "function_call_output", "call_id": "2", "output": [{"type": "input_text", "text": "y"}]},
    ]
    messages = checked({"model": "m", "instructions": "a", "input": items})["messages"]
    assert messages[0] == {"role": "system", "content": "a\n\nb"}
    assert [call["id"] for call in messages[2]["tool_calls"]] == ["1", "2"]
    assert messages[2]["content"] == "a"
    assert [message["content"] for message in messages[3:]] == ["x", "y"]


def test_images_and_files_with_their_data() -> None:
    parts = [
        {"type": "input_image", "image_url": "data:image/png;base64,QUJD", "detail": "low"},
        {"type": "input_file", "file_data": "data:application/pdf;base64,QUJD", "filename": "a.pdf"},
    ]
    content = checked({"model": "m", "input": [{"role": "user", "content": parts}]})["messages"][0]["content"]
    assert [part["type"] for part in content] == ["image_url", "file"]


def test_tools_structured_output_and_reasoning() -> None:
    request = BASE | {
        "tools": [{"type": "function", "name": "f", "parameters": {"type": "object"}, "strict": True}],
        "tool_choice": {"type": "function", "name": "f"},
        "text": {"format": {"type": "json_schema", "name": "n", "schema": {}, "strict": True}},
        "reasoning": {"effort": "low"},
    }
    chat = checked(request)
    assert chat["tools"][0]["function"]["strict"] is True
    assert chat["tool_choice"]["function"] == {"name": "f"}
    assert chat["response_format"]["json_schema"] == {"name": "n", "schema": {}, "strict": True}
    assert chat["reasoning_effort"] == "low"


@pytest.mark.parametrize(
    "more",
    [
        {"previous_response_id": "resp_1"},
        {"conversation": "c"},
        {"background": True},
        {"truncation": "auto"},
        {"top_logprobs": 2},
        {"include": ["message.output_text.logprobs"]},
        {"include": 1},
        {"tools": [{"type": "web_search"}]},
        {"input": [{"type": "item_reference", "id": "x"}]},
        {"input": [{"role": "user", "content": [{"type": "input_image", "file_id": "f"}]}]},
        {"input": 3},
        {"text": {"format": {"type": "grammar"}}},
    ],
)
def test_what_has_no_words_is_refused(more: dict[str, Any]) -> None:
    with pytest.raises(Untranslatable):
        chat_request(BASE | more)
