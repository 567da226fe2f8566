"""A router's 404 told from one about a model or an object."""

import time

import pytest

from agent.engines.http.missing_path import BODY_BYTES, lacks_path

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
            body = b"<%b>" % tag + b" " * (BODY_BYTES - 20) + end
            assert lacks_path(404, HTML, body, "/v1/rerank") is (end.startswith(b"</"))
    assert time.thread_time() - began_s < 0.1
    assert lacks_path(404, HTML, b"<h1> \n Not Found\n</h1>", "/v1/rerank")
