"""Error responses of engines: memory, refusals, and paths that are not there."""

import time

import pytest

from agent.engines.error_responses import PATH_BODY_BYTES, lacks_path, refusal_of
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


JSON = (("content-type", "application/json"),)
TEXT = (("content-type", "text/plain; charset=utf-8"),)
HTML = (("content-type", "text/html"),)


@pytest.mark.parametrize(
    ("status", "headers", "body"),
    [
        pytest.param(404, JSON, b'{"detail":"Not Found"}', id="FastAPI: vLLM, SGLang, llama-cpp-python"),
        pytest.param(405, JSON, b'{"detail":"Method Not Allowed"}', id="FastAPI, another method"),
        pytest.param(
            404,
            JSON,
            b'{"error":{"code":404,"message":"File Not Found","type":"not_found_error"}}',
            id="llama.cpp",
        ),
        pytest.param(
            404,
            JSON,
            b'{"error":{"message":"File Not Found: /v1/rerank","code":404}}',
            id="llama.cpp with path",
        ),
        pytest.param(
            501,
            JSON,
            b'{"error":{"code":501,"message":"This server does not support reranking. Start it with '
            b'`--reranking`","type":"not_supported_error"}}',
            id="llama.cpp without the option",
        ),
        pytest.param(404, TEXT, b"404 page not found", id="gin: Ollama"),
        pytest.param(404, (), b"", id="axum: TGI"),
        pytest.param(404, TEXT, b"404: Not Found", id="aiohttp: ComfyUI"),
        pytest.param(404, TEXT, b"Not Found", id="Starlette"),
        pytest.param(404, HTML, b"<html><head><title>404 Not Found</title></head></html>", id="nginx"),
        pytest.param(404, HTML, b"<html><body><pre>Cannot POST /v1/rerank</pre></body></html>", id="Express"),
        pytest.param(
            404, JSON, b'{"error":"Unexpected endpoint or method. (POST /v1/rerank)"}', id="LM Studio"
        ),
    ],
)
def test_an_answer_of_the_router_shows_that_the_path_is_not_there(
    status: int, headers: tuple[tuple[str, str], ...], body: bytes
) -> None:
    assert lacks_path(status, headers, body, "/v1/rerank?a=1")


@pytest.mark.parametrize(
    ("status", "headers", "body"),
    [
        pytest.param(
            404,
            JSON,
            b'{"error":{"message":"The model `x` does not exist.","type":"NotFoundError","code":404}}',
            id="vLLM, a model",
        ),
        pytest.param(
            404,
            JSON,
            b'{"error":{"message":"model \\"x\\" not found, try pulling it first","type":"api_error"}}',
            id="Ollama, a model",
        ),
        pytest.param(404, JSON, b'{"detail":"File with id file-1 not found"}', id="an object"),
        pytest.param(404, JSON, b'{"id":1}', id="JSON without a message"),
        pytest.param(404, JSON, b'{"detail":', id="broken JSON"),
        pytest.param(501, JSON, b'{"error":{"message":"no","type":"server_error"}}', id="another 501"),
        pytest.param(501, TEXT, b"Not Implemented", id="a plain 501"),
        pytest.param(404, JSON, b'["Not Found"]', id="a list"),
    ],
)
def test_an_answer_about_something_else_does_not(
    status: int, headers: tuple[tuple[str, str], ...], body: bytes
) -> None:
    assert not lacks_path(status, headers, body, "/v1/rerank")


def test_a_heading_full_of_blanks_is_read_in_no_time() -> None:
    began_s = time.thread_time()
    for tag in (b"title", b"pre"):
        for end in (b"x", b"<", b"</%b>" % tag):
            body = b"<%b>" % tag + b" " * (PATH_BODY_BYTES - 20) + end
            assert lacks_path(404, HTML, body, "/v1/rerank") is (end.startswith(b"</"))
    assert time.thread_time() - began_s < 0.1
    assert lacks_path(404, HTML, b"<h1> \n Not Found\n</h1>", "/v1/rerank")
