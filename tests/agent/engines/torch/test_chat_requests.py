"""Bodies of chat: messages, tools and their choice."""

from typing import Any

import pytest

from agent.engines.torch.chat_requests import ChatRequest
from agent.engines.torch.errors import InvalidRequest

HELLO = {"messages": [{"role": "user", "content": "hello"}]}
ADD = {"type": "function", "function": {"name": "add", "parameters": {"type": "object"}, "strict": True}}
NOW = {"type": "function", "function": {"name": "now", "description": "the time"}}
JSON = {"type": "json_object"}
CALL = {"id": "c1", "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}}


def refusal(read: Any, body: Any) -> InvalidRequest:
    with pytest.raises(InvalidRequest) as caught:
        read(body)
    return caught.value


def test_text_parts_are_joined() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    assert ChatRequest.read({"messages": [{"role": "user", "content": parts}]}).messages[0].text == "ab"


def test_developer_messages_count_as_system_messages() -> None:
    request = ChatRequest.read({"messages": [{"role": "developer", "content": "be kind"}]})
    assert request.messages[0].plain()["role"] == "system"


@pytest.mark.parametrize(
    ("messages", "where"),
    [
        (None, "messages"),
        ([], "messages"),
        (["hi"], "messages[0]"),
        ([{"role": "user", "content": None}], "messages[0].content"),
        ([{"role": "robot", "content": "x"}], "messages[0].role"),
        ([{"role": "user", "content": "x", "tool_calls": [CALL]}], "messages[0].tool_calls"),
        ([{"role": "assistant", "content": "x", "audio": {"id": "a"}}], "messages[0].audio"),
        ([{"role": "assistant", "content": "x", "tool_calls": [1]}], "messages[0].tool_calls"),
        ([{"role": "user", "content": [{"type": "image_url"}]}], "messages[0].content"),
    ],
)
def test_a_bad_message_is_named(messages: Any, where: str) -> None:
    assert refusal(ChatRequest.read, {"messages": messages}).param == where


def test_continuing_the_last_message_excludes_a_new_prompt() -> None:
    assert not ChatRequest.read(HELLO | {"continue_final_message": True}).add_generation_prompt
    both = HELLO | {"continue_final_message": True, "add_generation_prompt": True}
    assert refusal(ChatRequest.read, both).param == "continue_final_message"


def test_an_answer_with_calls_is_not_continued() -> None:
    called = {"messages": [{"role": "assistant", "content": "x", "tool_calls": [CALL]}]}
    error = refusal(ChatRequest.read, called | {"continue_final_message": True})
    assert error.param == "continue_final_message"


def test_calls_and_their_results_are_what_templates_take() -> None:
    messages = [
        {"role": "assistant", "content": None, "tool_calls": [CALL]},
        {"role": "tool", "tool_call_id": "c1", "content": [{"type": "text", "text": "2"}]},
    ]
    made, told = ChatRequest.read({"messages": [*HELLO["messages"], *messages]}).messages[1:]
    function = {"name": "add", "arguments": {"a": 1}}
    assert made.plain() == {
        "role": "assistant",
        "content": "",
        "tool_calls": [{"type": "function", "function": function, "id": "c1"}],
    }
    assert told.plain() == {"role": "tool", "content": "2", "tool_call_id": "c1"}


def test_arguments_that_are_no_json_stay_text() -> None:
    call = {"id": "c1", "function": {"name": "add", "arguments": "{broken"}}
    request = ChatRequest.read({"messages": [{"role": "assistant", "tool_calls": [call]}]})
    assert request.messages[0].plain()["tool_calls"][0]["function"]["arguments"] == "{broken"


@pytest.mark.parametrize(
    ("choice", "names"),
    [
        ("auto", ["add", "now"]),
        ("required", ["add", "now"]),
        ("none", []),
        ({"type": "function", "function": {"name": "now"}}, ["now"]),
    ],
)
def test_the_choice_says_which_tools_are_offered(choice: Any, names: list[str]) -> None:
    request = ChatRequest.read(HELLO | {"tools": [ADD, NOW], "tool_choice": choice})
    assert [tool.name for tool in request.offered] == names


def test_a_tool_is_what_templates_take() -> None:
    request = ChatRequest.read(HELLO | {"tools": [ADD, NOW]})
    function = {"name": "add", "parameters": {"type": "object"}}
    assert [tool.plain() for tool in request.tools] == [{"type": "function", "function": function}, NOW]


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"tools": [{"type": "web_search"}]}, "tools"),
        ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, "tools"),
        ({"tools": [ADD], "tool_choice": "sometimes"}, "tool_choice"),
        ({"tools": [ADD], "tool_choice": {"type": "function", "function": {"name": "now"}}}, "tool_choice"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"parallel_tool_calls": 1}, "parallel_tool_calls"),
        ({"top_logprobs": 3}, "top_logprobs"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ({"logprobs": 2}, "logprobs"),
    ],
)
def test_what_cannot_be_is_refused_by_name(change: Any, param: str) -> None:
    assert refusal(ChatRequest.read, HELLO | change).param == param


def test_log_probabilities_are_of_as_many_alternatives_as_wanted() -> None:
    assert ChatRequest.read(HELLO).wanted_logprobs is None
    assert ChatRequest.read(HELLO | {"logprobs": True}).wanted_logprobs == 0
    assert ChatRequest.read(HELLO | {"logprobs": True, "top_logprobs": 4}).sampling.top_logprobs == 4
