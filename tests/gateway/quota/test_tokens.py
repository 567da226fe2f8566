"""What a request lets its answer have is read as any engine might read it."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.quota.tokens import (
    JSON_BYTES,
    MEMBERS,
    TokenDemand,
    demand_of_json,
    demand_of_unread,
    prompts_of,
    tokens_seen,
    tokens_unread,
)

UNLIMITED = TokenDemand(None)

NAMES = [
    *("max_completion_tokens", "max_tokens", "max_output_tokens", "n_predict", "max_new_tokens"),
    *("num_predict", "max_length", "max_tokens_to_sample"),
]
CHAT = "/v1/chat/completions"


def chat(**members: Any) -> TokenDemand:
    return demand_of_json(members, CHAT)


@pytest.mark.parametrize("name", [name for name in NAMES if name != "max_tokens"])
def test_every_name_an_engine_reads_counts_and_the_largest_at_that(name: str) -> None:
    assert chat(**{"max_tokens": 1, name: 4096}) == TokenDemand(4096)
    assert chat(**{"max_tokens": 4096, name: 1}) == TokenDemand(4096)
    assert chat(**{"max_tokens": 5, name: None}) == TokenDemand(5)


@pytest.mark.parametrize("outer", ["options", "parameters", "sampling_params"])
def test_limits_within_an_engines_options_count(outer: str) -> None:
    assert chat(max_tokens=1, **{outer: {"num_predict": 4096}}).most_tokens == 4096
    assert chat(max_tokens=1, **{outer: [{"max_new_tokens": 5}, {"max_new_tokens": 900}]}).most_tokens == 900
    assert chat(max_tokens=2, **{outer: {"n": 3}}) == TokenDemand(6, 3)
    assert chat(max_tokens=1, **{outer: "max_new_tokens"}) == TokenDemand(1)


@pytest.mark.parametrize(
    ("path", "body", "most"),
    [
        (CHAT, {"max_completion_tokens": 5}, 5),
        (CHAT, {"n_predict": 5}, None),
        (CHAT, {"max_output_tokens": 5}, None),
        ("/v1/completions", {"max_tokens": 5}, 5),
        ("/v1/responses", {"max_output_tokens": 5}, 5),
        ("/v1/responses", {"max_tokens": 5}, None),
        ("/v1/messages", {"max_tokens": 5}, 5),
        ("/api/chat", {"max_tokens": 5}, None),
        ("/api/chat", {"options": {"num_predict": 5}}, 5),
        ("/api/generate?x=1", {"options": {"num_predict": 5}}, 5),
        ("/api/generate", {"num_predict": 5}, None),
        ("/api/generate", {"options": {"NUM_PREDICT": 5}}, None),
        ("/api/generate", {"options": {"num_predict": 5}, "Options": None}, None),
        ("/completion", {"n_predict": 5}, 5),
        ("/completion", {"max_new_tokens": 5}, None),
        ("/generate", {"parameters": {"max_new_tokens": 5}}, 5),
        ("/generate", {"max_new_tokens": 5}, None),
        ("/generate", {"sampling_params": {"max_new_tokens": 5}}, 5),
        ("/generate", {"sampling_params": [{"max_new_tokens": 5}, {"max_new_tokens": 6}]}, 6),
        ("/generate", {"sampling_params": [{"max_new_tokens": 5}, {}]}, None),
        ("/generate_stream", {"parameters": {"max_new_tokens": 5}}, 5),
        ("/of/its/own", {"max_tokens": 5, "n_predict": 5}, None),
        ("/", {"max_tokens": 5}, None),
    ],
)
def test_a_limit_limits_only_under_a_name_that_is_read_there(
    path: str, body: dict[str, Any], most: int | None
) -> None:
    assert demand_of_json(body, path).most_tokens == most


@pytest.mark.parametrize("value", [0, -1, -2, "-1", 0.0, -1e300])
def test_zero_or_less_is_no_limit_whatever_stands_beside_it(value: Any) -> None:
    assert chat(max_tokens=value) == UNLIMITED
    assert chat(max_tokens=1, n_predict=value) == UNLIMITED
    assert chat(max_tokens=1, options={"num_predict": value}) == UNLIMITED


@pytest.mark.parametrize("value", [4096.0, "4096", 4095.5, "4.096e3"])
def test_numbers_are_read_as_generous_readers_do(value: Any) -> None:
    assert chat(max_tokens=1, n_predict=value).most_tokens == 4096


@pytest.mark.parametrize("value", [True, "many", [], {}, "x" * 99, float("nan"), float("inf")])
def test_a_limit_that_is_no_number_is_none(value: Any) -> None:
    assert chat(max_tokens=1, n_predict=value) == UNLIMITED


def test_case_does_not_hide_a_limit() -> None:
    assert chat(max_tokens=1, Max_Tokens=4096) == UNLIMITED
    assert chat(max_tokens=1, OPTIONS={"NUM_PREDICT": 4096}) == UNLIMITED
    assert chat(max_tokens=1, N=7).most_tokens == 7


def test_choices_and_prompts_multiply() -> None:
    assert demand_of_json({"max_tokens": 10, "n": 3, "best_of": 5}, CHAT, 2) == TokenDemand(100, 10)
    assert chat(n=3) == TokenDemand(None, 3)
    assert chat(max_tokens=10, n="4").most_tokens == 40
    assert chat(max_tokens=10, n=16_384).most_tokens == 163_840
    assert chat(max_tokens=10, n=-5) == TokenDemand(10)


def test_what_an_answer_has_at_least_and_what_never_ends_count() -> None:
    assert chat(max_tokens=10, min_tokens=500).most_tokens == 500
    assert chat(min_tokens=500) == TokenDemand(None, endless=True)
    assert chat(ignore_eos=True) == TokenDemand(None, endless=True)
    assert chat(ignore_eos=False) == UNLIMITED
    assert chat(ignore_eos=True, max_tokens=10) == TokenDemand(10)


def test_a_body_of_countless_members_is_taken_to_ask_for_all_there_is() -> None:
    many: dict[str, Any] = {f"m{number}": 1 for number in range(MEMBERS + 1)}
    bodies: list[dict[str, Any]] = [many, {"options": many}, {"options": [{}] * MEMBERS}]
    for members in bodies:
        assert demand_of_json({**members, "max_tokens": 1}, CHAT) == TokenDemand(None, endless=True)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(NAMES), inner, max_size=3),
    max_leaves=10,
)


@given(st.dictionaries(st.sampled_from([*NAMES, "n", "options", "sampling_params", "prompt"]), JSON))
def test_whatever_a_body_says_the_most_is_positive_or_unlimited(members: dict[str, Any]) -> None:
    asked = demand_of_json(members, CHAT, prompts_of(members))
    assert asked.choices >= 1
    assert asked.most_tokens is None or asked.most_tokens >= asked.choices


def vllm(body: dict[str, Any]) -> Any:
    return body.get("max_completion_tokens") or body.get("max_tokens")


def llama_cpp(body: dict[str, Any]) -> Any:
    return body.get("n_predict", body.get("max_tokens", body.get("max_completion_tokens")))


def ollama(body: dict[str, Any]) -> Any:
    options = body.get("options")
    return options.get("num_predict") if isinstance(options, dict) else None


def ollama_openai(body: dict[str, Any]) -> Any:
    """As encoding/json reads it: the last of any case."""
    return {name.lower(): value for name, value in body.items()}.get("max_tokens")


def tgi(body: dict[str, Any]) -> Any:
    parameters = body.get("parameters")
    return parameters.get("max_new_tokens", 100) if isinstance(parameters, dict) else 100


def sglang(body: dict[str, Any]) -> Any:
    sampling = body.get("sampling_params")
    return sampling.get("max_new_tokens", 128) if isinstance(sampling, dict) else 128


ENGINES = [
    (vllm, CHAT),
    (llama_cpp, CHAT),
    (llama_cpp, "/completion"),
    (ollama, "/api/generate"),
    (ollama_openai, "/v1/completions"),
    (tgi, "/generate"),
    (sglang, "/generate"),
]
NAMED = st.dictionaries(
    st.sampled_from([*NAMES, "Max_Tokens", "MAX_TOKENS"]), st.integers(-2, 5000), max_size=4
)
OUTER = st.sampled_from(["options", "Options", "parameters", "sampling_params"])


@pytest.mark.parametrize(("engine", "path"), ENGINES)
@given(NAMED, st.dictionaries(OUTER, NAMED, max_size=3), st.integers(1, 8))
def test_no_engine_reads_more_than_was_reserved(
    engine: Any, path: str, top: dict[str, Any], nested: dict[str, Any], choices: int
) -> None:
    body = {**top, **nested, "n": choices}
    asked, reads = demand_of_json(body, path), engine(body)
    if asked.most_tokens is None or (path == "/generate" and reads in (100, 128)):
        return
    assert (reads or 0) > 0, "it reads no limit"
    assert reads * choices <= asked.most_tokens


@given(
    st.dictionaries(
        st.sampled_from([*NAMES, "n", "temperature", "model", "options.num_predict", "MAX_TOKENS"]),
        JSON | st.integers(1, 10**8),
        max_size=3,
    ),
    st.sampled_from([CHAT, "/v1/completions", "/v1/responses", "/api/chat", "/generate", "/elsewhere"]),
    st.integers(0, 4),
)
def test_a_member_that_says_nothing_of_tokens_changes_nothing(
    members: dict[str, Any], path: str, prompts: int
) -> None:
    """With it a body is read member by member, which most need not be."""
    assert demand_of_json(members, path, prompts) == demand_of_json({**members, "top_k": 1}, path, prompts)


def test_prompts_of_engines_own_bodies_are_counted() -> None:
    assert prompts_of({"text": ["a", "b", "c"]}) == 3
    assert prompts_of({"input_ids": [[1, 2], [3]]}) == 2
    assert prompts_of({"input_ids": [1, 2, 3]}) == 1
    assert prompts_of({"messages": [{"role": "user"}, {"role": "user"}]}) == 1
    assert prompts_of({"prompt": "a"}) == 1


# --- Bodies that are passed on unread


def unread(body: bytes, method: str = "POST", path: str = "/generate", whole: bool = True) -> TokenDemand:
    return demand_of_unread(method, path, body, whole=whole)


def test_json_is_read_whatever_it_is_called_and_what_cannot_be_read_is_unlimited() -> None:
    assert unread(b'{"n_predict": 9}', path="/completion") == TokenDemand(9)
    assert unread(b'{"text":["a","b"],"sampling_params":{"max_new_tokens":5}}') == TokenDemand(10, 2)
    for body in (
        b'{"n_predict": 9',
        b"[1]",
        b"\xff\xd8\xff",
        b"hello",
        b'{"n_predict": 9}'.ljust(JSON_BYTES + 1),
    ):
        assert unread(body) == UNLIMITED
    assert unread(b'{"n_predict": 9}', whole=False) == UNLIMITED


def test_what_only_fetches_or_does_not_write_asks_for_nothing() -> None:
    assert unread(b"", "GET", "/metrics?x=1") == TokenDemand(0)
    assert unread(b"", "POST", "/api/ps") == TokenDemand(0)
    assert unread(b'{"content":"x"}', path="/tokenize/") == TokenDemand(0)
    assert unread(b'{"prompt":"x"}', "GET") == UNLIMITED, "some read a body of GET"
    assert unread(b"", "POST", "/generate?prompt=x") == UNLIMITED


def test_text_is_counted_by_its_bytes_and_what_is_none_is_not() -> None:
    assert tokens_unread(b"x" * 400, 400) == 100
    assert tokens_unread(b"x" * 400, 4000) == 1000
    assert tokens_unread("ä".encode() * 40_000, None) == 20_000
    assert tokens_unread(b"x" * 65_535 + "ä".encode(), None) == 16_384
    assert tokens_unread(b"\x89PNG\r\n\x1a\n\xff" + b"x" * 400, 500) == 0
    assert tokens_unread(b"a\0b", 400) == 0
    assert tokens_unread(b"", None) == 0


@pytest.mark.parametrize(
    ("content_type", "tokens"),
    [
        ("text/event-stream; charset=utf-8", 7),
        ("application/x-ndjson", 7),
        ("application/json", 100),
        ("text/plain", 100),
        ("", 100),
        ("application/octet-stream", 100),
        ("image/png", 0),
        ("audio/wav", 0),
    ],
)
def test_an_answer_nobody_counted_has_tokens_by_what_came(content_type: str, tokens: int) -> None:
    assert tokens_seen(content_type, 7, 400) == tokens
