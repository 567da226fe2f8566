"""Request bodies: what is taken, and what is refused by name."""

from typing import Any

import pytest

from agent.engines.torch.errors import InvalidRequest
from agent.engines.torch.parsing import (
    ChatRequest,
    CompletionRequest,
    EmbeddingRequest,
    Sampling,
    read_object,
)

HELLO = {"messages": [{"role": "user", "content": "hello"}]}


def refusal(read: Any, body: Any) -> InvalidRequest:
    with pytest.raises(InvalidRequest) as caught:
        read(body)
    return caught.value


def test_a_plain_chat_is_greedy_unlimited_and_whole() -> None:
    request = ChatRequest.read(HELLO)
    assert [message.plain() for message in request.messages] == HELLO["messages"]
    assert request.sampling == Sampling(temperature=0.0)
    assert request.max_tokens is None
    assert not request.stream
    assert request.add_generation_prompt


def test_text_parts_are_joined() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    assert ChatRequest.read({"messages": [{"role": "user", "content": parts}]}).messages[0].text == "ab"


def test_developer_messages_count_as_system_messages() -> None:
    request = ChatRequest.read({"messages": [{"role": "developer", "content": "be kind"}]})
    assert request.messages[0].plain()["role"] == "system"


def test_max_completion_tokens_wins_over_max_tokens() -> None:
    assert ChatRequest.read(HELLO | {"max_tokens": 5, "max_completion_tokens": 7}).max_tokens == 7


def test_completions_give_sixteen_tokens_unless_told() -> None:
    assert CompletionRequest.read({"prompt": "x"}).max_tokens == 16


def test_asking_for_top_p_asks_for_sampling() -> None:
    sampling = ChatRequest.read(HELLO | {"top_p": 0.5}).sampling
    assert sampling.temperature == 1.0
    assert ChatRequest.read(HELLO | {"seed": 3}).sampling == Sampling(seed=3)


@pytest.mark.parametrize(
    "prompt", ["text", ["text"], [1, 2, 3], [[1, 2, 3]]], ids=["text", "one text", "tokens", "one of tokens"]
)
def test_a_prompt_is_text_or_tokens(prompt: Any) -> None:
    assert CompletionRequest.read({"prompt": prompt}).prompt in ("text", [1, 2, 3])


@pytest.mark.parametrize("given", ["a", ["a"], [5, 6], [[5, 6]]])
def test_embedding_input_is_one_or_several_of_text_or_tokens(given: Any) -> None:
    assert EmbeddingRequest.read({"input": given}).input in (["a"], [[5, 6]])


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("n", 2),
        ("best_of", 3),
        ("logprobs", True),
        ("logprobs", 0),
        ("top_logprobs", 5),
        ("tools", [{"type": "function"}]),
        ("tool_choice", "required"),
        ("response_format", {"type": "json_object"}),
        ("logit_bias", {"5": 1}),
        ("presence_penalty", 0.5),
        ("frequency_penalty", -1),
        ("echo", True),
        ("suffix", "x"),
        ("reasoning_effort", "low"),
        ("no_such_thing", 1),
    ],
)
def test_what_would_change_the_answer_is_refused_by_name(name: str, value: Any) -> None:
    error = refusal(ChatRequest.read, HELLO | {name: value})
    assert error.status == 400
    assert error.param == name
    assert name in error.message
    assert error.code in ("unsupported_parameter", "unknown_parameter")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("n", 1),
        ("n", None),
        ("logprobs", False),
        ("presence_penalty", 0.0),
        ("response_format", {"type": "text"}),
        ("tools", []),
        ("user", "u"),
        ("service_tier", "auto"),
        ("prompt_cache_key", "k"),
    ],
)
def test_values_that_ask_for_nothing_pass(name: str, value: Any) -> None:
    assert ChatRequest.read(HELLO | {name: value}).messages


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("temperature", 2.1),
        ("temperature", "warm"),
        ("temperature", True),
        ("top_p", -0.1),
        ("max_tokens", 0),
        ("max_tokens", 1.5),
        ("seed", "x"),
        ("stop", ["a"] * 17),
        ("stop", [""]),
        ("stop", 5),
        ("stream", "yes"),
        ("stream_options", {"include_usage": True}),
    ],
)
def test_impossible_values_are_refused_by_name(name: str, value: Any) -> None:
    assert refusal(ChatRequest.read, HELLO | {name: value}).param == name


@pytest.mark.parametrize(
    ("messages", "where"),
    [
        (None, "messages"),
        ([], "messages"),
        (["hi"], "messages[0]"),
        ([{"role": "user", "content": None}], "messages[0].content"),
        ([{"role": "tool", "content": "x"}], "messages[0].role"),
        ([{"role": "assistant", "content": "x", "tool_calls": [1]}], "messages[0].tool_calls"),
        ([{"role": "user", "content": [{"type": "image_url"}]}], "messages[0].content"),
    ],
)
def test_a_bad_message_is_named(messages: Any, where: str) -> None:
    assert refusal(ChatRequest.read, {"messages": messages}).param == where


@pytest.mark.parametrize("prompt", [None, [], 5, ["a", "b"], [True], [-1], [[1], [2]]])
def test_a_bad_prompt_is_refused(prompt: Any) -> None:
    assert refusal(CompletionRequest.read, {"prompt": prompt}).param == "prompt"


@pytest.mark.parametrize("given", [None, [], "", [""], [[]], [1.5], ["a"] * 2049])
def test_bad_embedding_input_is_refused(given: Any) -> None:
    assert refusal(EmbeddingRequest.read, {"input": given}).param == "input"


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b'"x"', b"\xff"])
def test_a_body_must_be_a_json_object(data: bytes) -> None:
    assert refusal(read_object, data).code == "invalid_json"


def test_continuing_the_last_message_excludes_a_new_prompt() -> None:
    assert not ChatRequest.read(HELLO | {"continue_final_message": True}).add_generation_prompt
    both = HELLO | {"continue_final_message": True, "add_generation_prompt": True}
    assert refusal(ChatRequest.read, both).param == "continue_final_message"


def test_prompts_do_not_show_in_a_requests_repr() -> None:
    assert "hello" not in repr(ChatRequest.read(HELLO))
    assert "secret" not in repr(CompletionRequest.read({"prompt": "secret"}))
