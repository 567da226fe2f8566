"""Requests in one piece are asked as streams only where the answer is the same."""

from collections.abc import AsyncIterator
from typing import Any

import orjson
import pytest

from gateway.domain.request import RequestBody
from gateway.pipeline.accumulation.streamed_form import may_be_streamed, streamed_body, usage_mode
from shared.protocol.messages import UsageMode
from tests.gateway.pipeline.accumulation.support import request_of

CHAT: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "stream"}]}


def test_the_stream_and_its_usage_are_asked_for_and_all_else_stays() -> None:
    body = b'{ "model":"m", "max_tokens" : 5 ,"messages":[], "stream":false}'
    asked = streamed_body("chat", body)
    assert asked is not None
    assert orjson.loads(asked) == {
        "model": "m",
        "max_tokens": 5,
        "messages": [],
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    assert b'"max_tokens" : 5 ,' in asked


@pytest.mark.parametrize(("route", "mode"), [("messages", UsageMode.NONE), ("responses", UsageMode.NONE)])
def test_other_routes_tell_their_usage_unasked(route: str, mode: UsageMode) -> None:
    asked = streamed_body(route, b'{"model":"m"}')
    assert asked is not None
    assert orjson.loads(asked) == {"model": "m", "stream": True}
    assert usage_mode(request_of(route=route)) is mode
    assert usage_mode(request_of(route="chat")) is UsageMode.KEEP


@pytest.mark.parametrize(
    "more",
    [
        {"n": 2},
        {"logprobs": True},
        {"tools": [{"type": "function", "function": {"name": "f"}}]},
        {"functions": [{"name": "f"}]},
        {"stream_options": {"include_usage": True}},
        {"response_format": {"type": "json_object"}},
        {"guided_json": {}},
        {"store": True},
        {"thinking": {"type": "enabled"}},
        {"return_hidden_states": True},
        {"audio": {}},
    ],
)
def test_what_may_differ_is_asked_in_one_piece(more: dict[str, Any]) -> None:
    assert streamed_body("chat", orjson.dumps(CHAT | more)) is None


@pytest.mark.parametrize(
    "more", [{"n": 1}, {"logprobs": False}, {"tools": []}, {"stream": None}, {"temperature": 0.5}]
)
def test_what_asks_for_nothing_special_is_asked_as_a_stream(more: dict[str, Any]) -> None:
    assert streamed_body("chat", orjson.dumps(CHAT | more)) is not None


@pytest.mark.parametrize("body", [b"{}", b"[]", b"no", b'{"stream":[' + b"1," * 5000 + b"1]}"])
def test_bodies_that_are_not_understood_stay_as_they_are(body: bytes) -> None:
    assert streamed_body("chat", body) is None


async def rest() -> AsyncIterator[bytes]:
    yield b""


def test_only_whole_bodies_of_main_paths_that_ask_for_no_stream_are_looked_at() -> None:
    assert may_be_streamed(request_of())
    assert not may_be_streamed(request_of(streaming=True))
    assert not may_be_streamed(request_of(shadow=True))
    assert not may_be_streamed(request_of(route="embeddings"))
    assert not may_be_streamed(request_of(route="messages", need="messages/v1/messages/count_tokens"))
    assert not may_be_streamed(request_of(body=RequestBody(b"")))
    assert not may_be_streamed(request_of(body=RequestBody(b"{}", rest())))
