"""What engines say when they refuse, in their own words."""

import pytest

from agent.engines.http.refusal_words import refusal_of
from shared.protocol.messages import Refusal

BUSY = [
    (429, b""),
    (429, b'{"error":"Model is overloaded","error_type":"overloaded"}'),  # TGI
    (429, b'{"error":{"message":"Rate limit reached for requests","code":"rate_limit_exceeded"}}'),
    (503, b'{"error":"server busy, please try again.  maximum pending requests exceeded"}'),  # Ollama
    (503, b'{"error":{"message":"The request queue is full.","code":503}}'),  # SGLang
    (503, b'{"error":{"message":"no slot available","type":"unavailable_error"}}'),  # llama.cpp
]
THE_REQUEST = [
    (429, b'{"error":{"message":"You exceeded your current quota","code":"insufficient_quota"}}'),
    (429, b'{"error":{"message":"Request too large for m on tokens per min (TPM): Limit 9, Requested 99"}}'),
    (503, b'{"error":{"message":"the prompt exceeds the context length"}}'),
]
NEITHER = [
    (503, b'{"error":{"code":503,"message":"Loading model","type":"unavailable_error"}}'),  # llama.cpp
    (503, b"CUDA out of memory. Tried to allocate 2.00 GiB"),
    (503, b'{"error":{"message":"the engine is not well"}}'),
]


@pytest.mark.parametrize(("status", "text"), BUSY)
@pytest.mark.parametrize("others", [0, 3])
def test_too_many_at_once(status: int, text: bytes, others: int) -> None:
    assert refusal_of(status, text, others) is Refusal.BUSY


@pytest.mark.parametrize(("status", "text"), THE_REQUEST)
def test_this_request(status: int, text: bytes) -> None:
    assert refusal_of(status, text, 3) is Refusal.REQUEST


@pytest.mark.parametrize(("status", "text"), NEITHER)
def test_the_engine_itself(status: int, text: bytes) -> None:
    assert refusal_of(status, text, 3) is None


def test_a_503_without_a_reason_is_one_too_many_where_others_run() -> None:
    assert refusal_of(503, b"Service Unavailable", 2) is Refusal.BUSY
    assert refusal_of(503, b"Service Unavailable", 0) is None


@pytest.mark.parametrize("status", [200, 400, 404, 500, 502, 504])
def test_other_statuses_refuse_nothing(status: int) -> None:
    assert refusal_of(status, b"too many requests", 3) is None
