"""Prompts become requests of their endpoint, and results come into the order of these."""

import orjson
import pytest

from gateway.cli.batch_lines import UnfitLine, in_order, request_lines

CHAT, PLAIN, VECTORS = "/v1/chat/completions", "/v1/completions", "/v1/embeddings"


@pytest.mark.parametrize(
    ("line", "endpoint", "body"),
    [
        (b"say hi", CHAT, {"messages": [{"role": "user", "content": "say hi"}], "model": "m"}),
        (b'"say hi"', PLAIN, {"prompt": "say hi", "model": "m"}),
        (b"say hi", VECTORS, {"input": "say hi", "model": "m"}),
        (b"say hi", "/v1/responses", {"input": "say hi", "model": "m"}),
        (b"a cat", "/v1/images/generations", {"prompt": "a cat", "model": "m"}),
        (b"42", CHAT, {"messages": [{"role": "user", "content": "42"}], "model": "m"}),
        (b'{"prompt":"x","max_tokens":3}', PLAIN, {"prompt": "x", "max_tokens": 3, "model": "m"}),
        (b'{"messages":[],"model":"n"}', CHAT, {"messages": [], "model": "n"}),
        (b'{"input":["a"]}', VECTORS, {"input": ["a"], "model": "m"}),
    ],
)
def test_a_prompt_becomes_a_request(line: bytes, endpoint: str, body: dict[str, object]) -> None:
    (made,) = map(orjson.loads, request_lines([b"\n", line], endpoint, "m"))
    assert made == {"custom_id": "line-2", "method": "POST", "url": endpoint, "body": body}


def test_a_request_stays_as_it_is() -> None:
    line = b'{"custom_id": "a",  "body": {"model":"x"}}'
    assert list(request_lines([line + b"\r\n"], CHAT, None)) == [line + b"\n"]


def test_a_line_without_a_model_is_named() -> None:
    with pytest.raises(UnfitLine, match="line 1 names no model"):
        list(request_lines([b"x"], CHAT, None))


def line(number: int) -> bytes:
    return b'{"id":"batch_req_x_%d"}\n' % number


def test_results_come_in_the_order_of_the_requests_without_what_is_cut_off() -> None:
    found = in_order([line(1), line(9), line(10)], [line(2), line(11), b'{"id":"batch_'])
    assert list(found) == [line(1), line(2), line(9), line(10), line(11)]
