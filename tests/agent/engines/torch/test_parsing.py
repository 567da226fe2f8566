"""Request bodies: what is taken, and what is refused by name."""

from typing import Any

import pytest

from agent.engines.torch.chat_requests import ChatRequest
from agent.engines.torch.errors import InvalidRequest
from agent.engines.torch.parsing import CompletionRequest, Sampling, read_object

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
    assert CompletionRequest.read({"prompt": prompt}).prompt in (["text"], [[1, 2, 3]])


def test_there_may_be_several_prompts() -> None:
    assert CompletionRequest.read({"prompt": ["a", [1, 2]]}).prompt == ["a", [1, 2]]
    assert refusal(CompletionRequest.read, {"prompt": ["a"] * 43, "n": 3}).param == "n"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("best_of", 3),
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
        ("n", 0),
        ("n", 129),
        ("presence_penalty", 2.1),
        ("frequency_penalty", -3),
        ("repetition_penalty", 0),
        ("min_p", 1.5),
        ("logit_bias", {"x": 1}),
        ("logit_bias", {"5": 101}),
        ("logit_bias", {"-5": 1}),
        ("response_format", {"type": "yaml"}),
        ("response_format", {"type": "json_schema"}),
        ("response_format", {"type": "json_schema", "json_schema": {"schema": "x"}}),
        ("stop", ["a"] * 17),
        ("stop", [""]),
        ("stop", 5),
        ("stream", "yes"),
        ("stream_options", {"include_usage": True}),
    ],
)
def test_impossible_values_are_refused_by_name(name: str, value: Any) -> None:
    assert refusal(ChatRequest.read, HELLO | {name: value}).param == name


@pytest.mark.parametrize("prompt", [None, [], 5, [True], [-1], ["a", 5], [[]], ["a"] * 129])
def test_a_bad_prompt_is_refused(prompt: Any) -> None:
    assert refusal(CompletionRequest.read, {"prompt": prompt}).param == "prompt"


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b'"x"', b"\xff"])
def test_a_body_must_be_a_json_object(data: bytes) -> None:
    assert refusal(read_object, data).code == "invalid_json"


def test_prompts_do_not_show_in_a_requests_repr() -> None:
    assert "hello" not in repr(ChatRequest.read(HELLO))
    assert "secret" not in repr(CompletionRequest.read({"prompt": "secret"}))


def test_what_shapes_the_choice_of_tokens_is_read() -> None:
    body: dict[str, Any] = {
        "presence_penalty": 0.5,
        "frequency_penalty": -1,
        "repetition_penalty": 1.2,
        "min_p": 0.1,
    }
    sampling = CompletionRequest.read(
        {"prompt": "x", "logit_bias": {"5": -100, "7": 2}, "logprobs": 3, **body}
    ).sampling
    assert sampling == Sampling(logit_bias=((5, -100.0), (7, 2.0)), top_logprobs=3, **body)


def test_an_answer_without_tokens_is_for_echo() -> None:
    assert refusal(CompletionRequest.read, {"prompt": "x", "max_tokens": 0}).param == "max_tokens"
    assert CompletionRequest.read({"prompt": "x", "max_tokens": 0, "echo": True}).max_tokens == 0


def test_best_of_is_refused_unless_it_is_n() -> None:
    assert CompletionRequest.read({"prompt": "x", "n": 2, "best_of": 2}).n == 2
    error = refusal(CompletionRequest.read, {"prompt": "x", "n": 2, "best_of": 3})
    assert (error.param, error.code) == ("best_of", "unsupported_parameter")


def test_json_without_a_schema_is_any_object() -> None:
    form = ChatRequest.read(HELLO | {"response_format": {"type": "json_object"}}).response_format
    assert form is not None
    assert form.schema_of_answer == {"type": "object"}
    schema = {"type": "array"}
    wanted = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema, "strict": True}}
    form = ChatRequest.read(HELLO | {"response_format": wanted}).response_format
    assert form is not None
    assert form.schema_of_answer == schema
    assert (
        refusal(ChatRequest.read, HELLO | {"response_format": wanted, "ignore_eos": True}).param
        == "ignore_eos"
    )
