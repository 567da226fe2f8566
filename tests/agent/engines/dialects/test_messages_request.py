"""Anthropic's requests as requests of chat completions."""

from typing import Any

import pytest
from openai.types.chat import completion_create_params
from pydantic import TypeAdapter

from agent.engines.dialects.dialect import Untranslatable
from agent.engines.dialects.messages_request import chat_request

BASE: dict[str, Any] = {"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": "hi"}]}
_SHAPE: TypeAdapter[Any] = TypeAdapter(completion_create_params.CompletionCreateParamsNonStreaming)


def checked(request: dict[str, Any]) -> dict[str, Any]:
    chat = chat_request(request)
    _SHAPE.validate_python({**chat, "stream": False})
    return chat


def turn(*blocks: dict[str, Any], role: str = "user") -> dict[str, Any]:
    return BASE | {"messages": [{"role": role, "content": list(blocks)}]}


def test_system_prompt_limits_and_stops() -> None:
    system = [{"type": "text", "text": "be"}, {"type": "text", "text": "brief"}]
    chat = checked(BASE | {"system": system, "stop_sequences": ["x"], "metadata": {"user_id": "u"}})
    assert chat["messages"][0] == {"role": "system", "content": "be\n\nbrief"}
    assert (chat["max_tokens"], chat["stop"], chat["user"]) == (9, ["x"], "u")
    assert "stream" not in chat


def test_a_stream_is_asked_for_its_usage() -> None:
    assert chat_request(BASE | {"stream": True})["stream_options"] == {"include_usage": True}


def test_images_go_as_data_and_as_addresses() -> None:
    data = {"type": "base64", "media_type": "image/png", "data": "QUJD"}
    url = {"type": "url", "url": "https://x/y.png"}
    blocks = [{"type": "image", "source": data}, {"type": "image", "source": url}]
    parts = checked(turn(*blocks, {"type": "text", "text": "what?"}))["messages"][0]["content"]
    assert [part["type"] for part in parts] == ["image_url", "image_url", "text"]
    assert parts[0]["image_url"]["url"] == "data:image/png;base64,QUJD"


def test_calls_and_their_results_keep_their_ids_and_order() -> None:
    calls = [{"type": "tool_use", "id": str(n), "name": "f", "input": {"n": n}} for n in range(2)]
    results = [{"type": "tool_result", "tool_use_id": str(n), "content": f"r{n}"} for n in range(2)]
    thought = {"type": "thinking", "thinking": "hm", "signature": "s"}
    messages = [
        {"role": "assistant", "content": [thought, *calls]},
        {"role": "user", "content": [*results, {"type": "text", "text": "go on"}]},
    ]
    chat = checked(BASE | {"messages": messages})["messages"]
    assert [call["function"]["arguments"] for call in chat[0]["tool_calls"]] == ['{"n":0}', '{"n":1}']
    assert [(m["role"], m.get("tool_call_id")) for m in chat[1:]] == [
        ("tool", "0"),
        ("tool", "1"),
        ("user", None),
    ]


@pytest.mark.parametrize(
    ("given", "choice"),
    [
        ({"type": "any"}, "required"),
        ({"type": "none"}, "none"),
        ({"type": "tool", "name": "f"}, {"type": "function", "function": {"name": "f"}}),
    ],
)
def test_tools_and_the_choice_among_them(given: dict[str, Any], choice: object) -> None:
    tools = [{"name": "f", "description": "d", "input_schema": {"type": "object"}}]
    chat = checked(BASE | {"tools": tools, "tool_choice": given | {"disable_parallel_tool_use": True}})
    assert chat["tools"][0]["function"] == {"name": "f", "description": "d", "parameters": {"type": "object"}}
    assert (chat["tool_choice"], chat["parallel_tool_calls"]) == (choice, False)


def test_structured_output() -> None:
    form = {"type": "json_schema", "schema": {"type": "object"}}
    chat = checked(BASE | {"output_config": {"format": form, "effort": "low"}})
    assert chat["response_format"]["json_schema"]["schema"] == {"type": "object"}
    assert chat["reasoning_effort"] == "low"


def test_what_tells_an_engine_to_go_on_passes() -> None:
    more = {"continue_final_message": True, "add_generation_prompt": False}
    assert more.items() <= chat_request(BASE | more).items()


@pytest.mark.parametrize(
    "more",
    [
        {"tools": [{"type": "web_search_20250305", "name": "web_search"}]},
        {"mcp_servers": [{"url": "x"}]},
        {"messages": "hi"},
        {"messages": [{"role": "tool", "content": "x"}]},
        {"messages": [{"role": "user", "content": [{"type": "document", "source": {"type": "file"}}]}]},
        {"system": 1},
        {"tool_choice": {"type": "odd"}, "tools": [{"name": "f", "input_schema": {}}]},
        {"output_config": {"format": {"type": "odd"}}},
    ],
)
def test_what_has_no_words_is_refused(more: dict[str, Any]) -> None:
    with pytest.raises(Untranslatable):
        chat_request(BASE | more)
