"""Whoever asks a gateway by HTTP at a wrong URL reads what is wrong and what to write instead."""

from http.client import BadStatusLine, RemoteDisconnected

import pytest

from shared.process.connection_errors import explain_http_error


@pytest.mark.parametrize(
    ("url", "error", "said"),
    [
        (
            "http://127.0.0.1:8700",
            RemoteDisconnected("gone"),
            "if the port speaks TLS, write https://127.0.0.1:8700",
        ),
        (
            "http://127.0.0.1:8700",
            ConnectionResetError(),
            "if the port speaks TLS, write https://127.0.0.1:8700",
        ),
        ("https://llm.example.com", RemoteDisconnected("gone"), "gone"),
        ("https://llm.example.com", ConnectionResetError(), "write http://llm.example.com if"),
        ("https://llm.example.com", BadStatusLine("SSH-2.0"), "what answers there is no HTTP"),
        (
            "https://llm.example.com",
            ConnectionRefusedError(),
            "nobody listens there (llm.example.com refuses",
        ),
        ("https://llm.example.com", TimeoutError("timed out"), "timed out"),
    ],
)
def test_who_asks_by_http_reads_what_is_wrong(url: str, error: Exception, said: str) -> None:
    assert said in explain_http_error(url, error)
