"""Which requests may be answered from one another: deterministic ones, and identical ones of one tenant."""

from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from gateway.domain.request import Request, RequestBody
from gateway.domain.residency import read_where
from gateway.pipeline.cache.cache import CacheKey, key_of
from gateway.pipeline.cache.rules import deterministic
from shared.protocol.messages import UsageMode
from tests.gateway.pipeline.cache.asking import chat, request

ASK: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "my url is http://x"}]}
ZERO = {**ASK, "temperature": 0}
IMAGE = {"type": "image_url", "image_url": {"url": "https://example.com/cat.png"}}
INLINE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}


def seen(part: Any) -> dict[str, Any]:
    return {**ZERO, "messages": [{"role": "user", "content": [{"type": "text", "text": "?"}, part]}]}


@pytest.mark.parametrize(
    ("route", "members"),
    [
        ("embeddings", {"input": "x"}),
        ("embeddings", {"input": [1, 2, 3], "user": "u"}),
        ("rerank", {"query": "x", "documents": ["a"]}),
        ("chat", ZERO),
        ("chat", {**ZERO, "temperature": 0.0, "n": 1, "store": False, "stream": True}),
        ("chat", {**ZERO, "tools": [{"type": "function", "function": {"name": "f"}}]}),
        ("chat", seen(INLINE)),
        ("completions", {"prompt": "x", "temperature": 0, "best_of": 1}),
        ("responses", {"input": "x", "temperature": 0, "store": False, "tools": [{"type": "function"}]}),
    ],
)
def test_these_are_answered_alike_each_time(route: str, members: dict[str, Any]) -> None:
    assert deterministic(route, members, orjson.dumps(members))


@pytest.mark.parametrize(
    ("route", "members"),
    [
        ("chat", ASK),
        ("chat", {**ASK, "temperature": 0.1}),
        ("chat", {**ASK, "temperature": False}),
        ("chat", {**ASK, "temperature": "0"}),
        ("chat", {**ZERO, "n": 2}),
        ("chat", {**ZERO, "store": True}),
        ("chat", {**ZERO, "web_search_options": {"x": 1}}),
        ("chat", {**ZERO, "tools": [{"type": "web_search"}]}),
        ("chat", {**ZERO, "tools": "all"}),
        ("chat", seen(IMAGE)),
        ("chat", seen({"type": "file", "file": {"file_id": "f-1"}})),
        ("chat", seen({"type": "input_image", "image_url": "https://example.com/cat.png"})),
        ("completions", {"prompt": "x", "temperature": 0, "best_of": 3}),
        ("responses", {"input": "x", "temperature": 0}),
        ("responses", {"input": "x", "temperature": 0, "store": False, "previous_response_id": "r"}),
        ("responses", {"input": "x", "temperature": 0, "store": False, "tools": [{"type": "mcp"}]}),
        ("responses", {"temperature": 0, "store": False, "prompt": {"id": "p"}}),
        ("embeddings", {"input": [IMAGE]}),
        ("audio", {}),
        ("images", {"prompt": "x", "temperature": 0}),
        ("any", {"temperature": 0}),
        ("messages", {**ZERO}),
    ],
)
def test_these_may_be_answered_otherwise_the_next_time(route: str, members: dict[str, Any]) -> None:
    assert not deterministic(route, members, orjson.dumps(members))


def test_a_link_is_seen_however_it_is_written() -> None:
    body = orjson.dumps(seen(IMAGE)).replace(b"url", b"\\u0075\\u0072l")
    assert not deterministic("chat", orjson.loads(body), body)


def key(asked: Request) -> CacheKey:
    return key_of(asked, orjson.loads(asked.body.prefix))


def test_what_changes_no_answer_makes_no_difference() -> None:
    one = chat(user="alice", prompt_cache_key="k")
    other = chat(safety_identifier="x")
    turned = replace(
        other, body=RequestBody(orjson.dumps(dict(reversed(orjson.loads(other.body.prefix).items()))))
    )
    sent = (("content-type", "application/json"), ("user-agent", "curl"), ("content-length", "9"))
    assert key(one) == key(other) == key(turned) == key(replace(one, headers=sent))


@pytest.mark.parametrize(
    "other",
    [
        request(tenant="other"),
        request(model="n"),
        request(version="v1"),
        request(where=read_where("region=eu")),
        request({"model": "m", "input": "hello!"}),
        request({"model": "m", "input": "hello", "dimensions": 8}),
        request({"model": "m", "input": "hello", "stream": True}),
        request(headers=(("content-type", "application/json"), ("x-lora", "a"))),
        request(usage=UsageMode.KEEP),
        replace(request(), path="/v1/embeddings?x=1"),
        replace(request(), method="PUT"),
    ],
)
def test_what_may_change_an_answer_makes_a_difference(other: Request) -> None:
    assert key(request()) != key(other)


def test_numbers_that_reading_makes_alike_are_told_apart() -> None:
    bodies = [b'{"seed":1234567890123456789%d}' % last for last in (1, 2)]
    assert orjson.loads(b'{"s":1.00000000000000001}') == orjson.loads(b'{"s":1.0}')
    ones = [
        replace(request(), body=RequestBody(body))
        for body in (*bodies, b'{"s":1.00000000000000001}', b'{"s":1.0}')
    ]
    assert len({key(each) for each in ones}) == 4


def test_who_asks_is_part_of_what_is_said_where_answers_repeat_it() -> None:
    one, other = chat(user="alice"), chat(user="bob")
    assert key(one) == key(other)
    assert key(replace(one, route="responses")) != key(replace(other, route="responses"))


@given(st.text(max_size=8), st.text(max_size=8), st.text(max_size=8), st.text(max_size=8))
def test_tenants_have_keys_of_their_own(tenant: str, model: str, other: str, another: str) -> None:
    one, two = key(request(tenant=tenant, model=model)), key(request(tenant=other, model=another))
    assert (one == two) == ((tenant, model) == (other, another))
    if tenant != other:
        assert one.digest != two.digest


def test_what_is_nested_too_deeply_to_be_put_in_order_counts_as_it_is_written() -> None:
    def nested(levels: int) -> Request:
        body = b'{"model":"m","input":"x","metadata":%b}' % (b"[" * levels + b"]" * levels)
        return replace(chat(), body=RequestBody(body))

    assert key(nested(900)) == key(nested(900)) != key(nested(901))
