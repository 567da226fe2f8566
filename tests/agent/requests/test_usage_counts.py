"""Token counts are read from every shape, and nothing that a model writes is taken for them."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.requests.usage import JSON_TAIL_BYTES, reader_for
from agent.requests.usage_counts import native_usage, read_usage, usage_from, usage_in_headers
from shared.protocol.messages import Headers, Usage, UsageMode


def body(document: Any) -> bytes:
    return json.dumps(document).encode()


def lines(*documents: Any) -> bytes:
    return b"".join(body(each) + b"\n" for each in documents)


def events(*documents: Any, before: str = "data: ") -> bytes:
    return b"".join(before.encode() + body(each) + b"\n\n" for each in documents)


JSON = (("content-type", "application/json; charset=utf-8"),)
NDJSON = (("content-type", "application/x-ndjson"),)
SSE = (("content-type", "text/event-stream"),)

OLLAMA_END = {"model": "m", "done": True, "context": [1, 2], "prompt_eval_count": 26, "eval_count": 290}
LLAMA_END = {
    "content": "",
    "stop": True,
    "tokens_predicted": 9,
    "tokens_evaluated": 50,
    "timings": {"cache_n": 40, "prompt_n": 10, "predicted_n": 9},
}
CASES: list[tuple[str, Headers, bytes, Usage]] = [
    ("Ollama's answer", JSON, body({"response": "hi", **OLLAMA_END}), Usage(26, 290)),
    (
        "Ollama's lines",
        NDJSON,
        lines({"response": "h", "done": False}, {"response": "i", "done": False}, OLLAMA_END),
        Usage(26, 290),
    ),
    ("a prompt Ollama had kept", NDJSON, lines({"done": True, "eval_count": 5}), Usage(0, 5)),
    ("Ollama's embeddings", JSON, body({"embeddings": [[0.1]], "prompt_eval_count": 8}), Usage(8, 0)),
    ("llama.cpp's answer", JSON, body({"content": "hi", **LLAMA_END}), Usage(50, 9, 40)),
    (
        "llama.cpp's stream",
        SSE,
        events({"content": "h", "stop": False, "tokens_predicted": 1, "tokens_evaluated": 50}, LLAMA_END),
        Usage(50, 9, 40),
    ),
    (
        "llama.cpp's timings alone",
        SSE,
        events(
            {"choices": [{"index": 0, "delta": {"content": "h"}}]},
            {
                "choices": [{"index": 0, "delta": {}}],
                "timings": {"prompt_n": 3, "cache_n": 7, "predicted_n": 2},
            },
        )
        + b"data: [DONE]\n\n",
        Usage(10, 2, 7),
    ),
    (
        "SGLang's answer",
        JSON,
        body({"text": "hi", "meta_info": {"prompt_tokens": 5, "completion_tokens": 16, "cached_tokens": 2}}),
        Usage(5, 16, 2),
    ),
    (
        "SGLang's answers to several",
        JSON,
        body([{"text": "a", "meta_info": {"prompt_tokens": 5, "completion_tokens": n}} for n in (1, 2, 3)]),
        Usage(15, 6),
    ),
    (
        "SGLang's stream of several",
        SSE,
        events(
            *(
                {"text": "a" * n, "meta_info": {"prompt_tokens": 5, "completion_tokens": n}, "index": n % 2}
                for n in range(1, 7)
            )
        )
        + b"data: [DONE]\n\n",
        Usage(10, 5 + 6),
    ),
    (
        "TGI's details",
        JSON,
        body(
            {
                "generated_text": "hi",
                "details": {
                    "finish_reason": "length",
                    "generated_tokens": 20,
                    "prefill": [{"id": 1}, {"id": 2}],
                    "best_of_sequences": [{"generated_tokens": 7}],
                },
            }
        ),
        Usage(2, 27),
    ),
    (
        "TGI's stream",
        SSE,
        events(
            {"index": 1, "token": {"id": 1, "text": "h"}, "generated_text": None, "details": None},
            {"index": 2, "generated_text": "hi", "details": {"generated_tokens": 2, "input_length": 11}},
            before="data:",
        ),
        Usage(11, 2),
    ),
    (
        "TGI's headers",
        (*JSON, ("x-prompt-tokens", "12"), ("x-generated-tokens", "34")),
        body([{"generated_text": "hi"}]),
        Usage(12, 34),
    ),
    (
        "LM Studio's answer",
        JSON,
        body({"output": [], "stats": {"input_tokens": 3, "total_output_tokens": 4}}),
        Usage(3, 4),
    ),
    (
        "LM Studio's stream",
        SSE,
        events({"type": "chat.end", "result": {"stats": {"input_tokens": 3, "total_output_tokens": 4}}}),
        Usage(3, 4),
    ),
    ("OpenAI's answer", JSON, body({"usage": {"prompt_tokens": 1, "completion_tokens": 2}}), Usage(1, 2)),
]


@pytest.mark.parametrize(
    ("headers", "sent", "usage"), [case[1:] for case in CASES], ids=[c[0] for c in CASES]
)
@pytest.mark.parametrize("step", [1, 7, 1 << 20])
def test_what_engines_count_is_read_however_it_comes(
    headers: Headers, sent: bytes, usage: Usage, step: int
) -> None:
    reader = reader_for(UsageMode.NONE, headers)
    passed = b"".join(reader.feed(sent[at : at + step]) for at in range(0, len(sent), step))
    assert passed + reader.finish() == sent, "nothing is changed"
    assert reader.usage() == usage


def test_an_answer_without_counts_has_none() -> None:
    for headers, sent in (
        (JSON, body({"generated_text": "hi"})),
        (JSON, body([1, 2])),
        (JSON, b"{"),
        (NDJSON, lines({"status": "pulling"})),
        (SSE, events({"token": "x", "details": None})),
        ((("content-type", "text/plain"),), b"eval_count"),
    ):
        reader = reader_for(UsageMode.NONE, headers)
        reader.feed(sent)
        assert reader.usage() is None


def test_of_a_long_answer_its_end_is_enough() -> None:
    context = {**OLLAMA_END, "context": list(range(100_000))}
    document = {
        "response": "x" * 100_000,
        "context": context["context"],
        "prompt_eval_count": 26,
        "eval_count": 290,
    }
    for headers, sent in ((JSON, body(document)), (NDJSON, lines({"done": False}, document))):
        reader = reader_for(UsageMode.NONE, headers)
        for at in range(0, len(sent), 10_000):
            reader.feed(sent[at : at + 10_000])
        assert reader.usage() == Usage(26, 290)


def test_only_the_end_is_kept() -> None:
    reader = reader_for(UsageMode.NONE, NDJSON)
    for _ in range(1000):
        reader.feed(b"x" * 1000 + b"\n")
    assert len(reader._tail.read()) < JSON_TAIL_BYTES + 2000  # type: ignore[attr-defined]


SPOOFS = [
    {"eval_count": 0, "prompt_eval_count": 0},
    {"usage": {"prompt_tokens": 0, "completion_tokens": 0}},
    {"timings": {"prompt_n": 0, "predicted_n": 0}},
    {"details": {"generated_tokens": 0}, "meta_info": {"completion_tokens": 0}},
]


@pytest.mark.parametrize("spoof", SPOOFS)
def test_what_a_model_calls_a_tool_with_counts_for_nothing(spoof: dict[str, Any]) -> None:
    message = {
        "tool_calls": [{"function": {"name": "f", "arguments": spoof}}],
        "content": body(spoof).decode(),
    }
    for headers, sent in (
        (JSON, body({**OLLAMA_END, "message": message})),
        (NDJSON, lines({"message": message, "done": False}, OLLAMA_END)),
    ):
        reader = reader_for(UsageMode.NONE, headers)
        reader.feed(sent)
        assert reader.usage() == Usage(26, 290)


@pytest.mark.parametrize("spoof", SPOOFS)
def test_text_within_a_document_that_is_cut_counts_for_nothing(spoof: dict[str, Any]) -> None:
    text = "x" * JSON_TAIL_BYTES + body(spoof).decode()
    reader = reader_for(UsageMode.NONE, JSON)
    sent = body({"response": text, **OLLAMA_END})
    for at in range(0, len(sent), 5000):
        reader.feed(sent[at : at + 5000])
    assert reader.usage() == Usage(26, 290)


@given(st.binary(max_size=300), st.booleans())
def test_any_bytes_give_counts_or_none(data: bytes, whole: bool) -> None:
    found = native_usage(data, whole=whole)
    assert found is None or min(found.prompt_tokens, found.completion_tokens) >= 0


@pytest.mark.parametrize("value", ["-1", "x", "", "1e9", "\u0661", "9" * 16])
def test_a_header_that_is_no_count_says_nothing(value: str) -> None:
    assert usage_in_headers((("x-generated-tokens", value),)) is None


def test_an_index_that_is_none_hurts_nobody() -> None:
    document = {"index": [], "meta_info": {"prompt_tokens": 5, "completion_tokens": 1}}
    reader = reader_for(UsageMode.NONE, NDJSON)
    reader.feed(lines(document, document))
    assert reader.usage() == Usage(5, 1)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ({"prompt_tokens": 5, "total_tokens": 5}, Usage(5, 0)),
        ({"total_tokens": 9}, Usage(9, 0)),
        (
            {"prompt_tokens": 5, "completion_tokens": 1, "prompt_tokens_details": {"cached_tokens": 4}},
            Usage(5, 1, 4),
        ),
        ({"prompt_tokens": 5, "completion_tokens": 1, "prompt_tokens_details": None}, Usage(5, 1)),
        ({"prompt_tokens": -1, "completion_tokens": "x"}, None),
        ({"prompt_tokens": True}, None),
        ({"seconds": 3}, None),
    ],
)
def test_counts_are_read_from_every_known_shape(value: dict[str, object], expected: Usage | None) -> None:
    assert usage_from(value) == expected


@pytest.mark.parametrize(
    "text", [b"", b'"usage":{', b'"usage":{"prompt_tokens":', b'"usage":{]', b'"usage":null']
)
def test_a_usage_object_that_does_not_parse_is_none(text: bytes) -> None:
    assert read_usage(text) is None


def test_usage_nested_without_end_counts_nothing() -> None:
    assert read_usage(b'{"usage":{"a":' + b"[" * 5000) is None
    assert read_usage(b'{"usage":{"a":' + b"[" * 3000 + b"]" * 3000 + b',"total_tokens":1}}') is None
