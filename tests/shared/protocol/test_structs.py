"""Payloads that come with each request: what they may hold, and what is said of those that do not."""

from collections.abc import Callable
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.protocol import limits
from shared.protocol.errors import FrameMalformed
from shared.protocol.messages import RequestHead, ResponseHead, Trailers, Usage
from shared.protocol.others import Others

Reader = Callable[[bytes], Any]
READERS: tuple[Reader, ...] = (
    RequestHead.from_payload,
    ResponseHead.from_payload,
    Trailers.from_payload,
    Others.from_payload,
)
OPEN: dict[str, Any] = {
    "deployment": "d",
    "method": "POST",
    "path": "/v1/x",
    "headers": [["a", "b"]],
    "model": "m",
    "request_id": "r",
}


def reads(kind: Reader, **said: Any) -> Any:
    return kind(orjson.dumps(said))


@pytest.mark.parametrize(
    ("changed", "complaint"),
    [
        ({"method": "POST\n"}, "'method'"),
        ({"method": "PÖST"}, "'method'"),
        ({"path": "/v1/x\n"}, "'path'"),
        ({"path": "/v1/\x7f"}, "'path'"),
        ({"path": "/" + "x" * 8192}, "'path'"),
        ({"headers": [["a", "b\x00"]]}, "'headers'"),
        ({"headers": [["A", "b"]]}, "'headers'"),
        ({"headers": [["", "b"]]}, "'headers'"),
        ({"headers": [["a", "b"]] * (limits.HEADERS + 1)}, "'headers'"),
        ({"headers": [["a", "x" * limits.HEADER_BYTES]]}, "'headers'.* bytes"),
        ({"headers": [["a", 1]]}, r"'headers\[0\]\[1\]'"),
        ({"model": "m" * (limits.MODEL_NAME_CHARS + 1)}, "'model'"),
        ({"usage": "much"}, "'usage'"),
        ({"streaming": 1}, "'streaming'"),
        ({"credit": 2**53 + 1}, "'credit'"),
        ({"credit": 1.0}, "'credit'"),
        ({"credit": True}, "'credit'"),
        ({"deadline_s": 1e16}, "'deadline_s'"),
        ({"gather_s": -0.1}, "'gather_s'"),
        ({"via": ["0" * 16 + "\n"]}, r"'via\[0\]'"),
        ({"via": ["0" * 16] * (limits.HOPS + 2)}, "'via'"),
        ({"where": {"": ["eu"]}}, "'where'"),
        ({"where": {"region": []}}, "'where"),
        ({"expected": {"input_tokens": -1}}, "'expected.input_tokens'"),
        ({"expected": {"prefix": "AAAA"}}, "'expected.prefix'"),
        ({"model": None}, "'model'"),
    ],
)
def test_what_open_may_not_hold_is_named(changed: dict[str, Any], complaint: str) -> None:
    assert reads(RequestHead.from_payload, **OPEN).model == "m"
    with pytest.raises(FrameMalformed, match=complaint):
        reads(RequestHead.from_payload, **OPEN | changed)


@pytest.mark.parametrize("name", sorted(OPEN.keys() - {"headers"}))
def test_what_open_must_hold_is_named_where_it_is_missing(name: str) -> None:
    with pytest.raises(FrameMalformed, match=name):
        reads(RequestHead.from_payload, **{key: value for key, value in OPEN.items() if key != name})


def test_nothing_said_of_headers_is_none() -> None:
    del (said := dict(OPEN))["headers"]
    assert reads(RequestHead.from_payload, **said).headers == ()
    assert reads(ResponseHead.from_payload, status=200).headers == ()


@pytest.mark.parametrize("status", [100, 102, 199, 600, 200.0, "200", True, None])
def test_a_status_is_one_that_a_response_can_have(status: Any) -> None:
    assert reads(ResponseHead.from_payload, status=101).status == 101
    with pytest.raises(FrameMalformed, match="'status'"):
        reads(ResponseHead.from_payload, status=status)


@pytest.mark.parametrize(
    ("said", "complaint"),
    [
        ({"usage": {"prompt_tokens": -1}}, "'usage.prompt_tokens'"),
        ({"usage": {"completion_tokens": 1.5}}, "'usage.completion_tokens'"),
        ({"usage": []}, "'usage'"),
        ({"gpu_s": 1e10}, "'gpu_s'"),
        ({"ran_by": "lab/gpu 1"}, "'ran_by'"),
        ({"ran_by": "x" * (limits.RAN_BY_CHARS + 1)}, "'ran_by'"),
        ({"device": "x" * 4097}, "'device'"),
    ],
)
def test_what_end_may_not_hold_is_named(said: dict[str, Any], complaint: str) -> None:
    with pytest.raises(FrameMalformed, match=complaint):
        reads(Trailers.from_payload, **said)


def test_whole_numbers_are_times_too_and_unknown_members_are_ignored() -> None:
    said = reads(Trailers.from_payload, total_s=2, usage={"prompt_tokens": 3, "later": 1}, later=[{}])
    assert said == Trailers(Usage(3), total_s=2.0)
    assert type(said.total_s) is float


def test_values_of_the_same_members_are_the_same() -> None:
    assert hash(ResponseHead(200, (("a", "b"),))) == hash(ResponseHead(200, (("a", "b"),)))
    with pytest.raises(AttributeError):
        ResponseHead(200).status = 500  # type: ignore[misc]


@pytest.mark.parametrize("read", READERS)
@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"[]",
        b"{} {}",
        b"\xef\xbb\xbf{}",
        b'{"status":200,"headers":[["a","\\ud800"]]}',
        b'{"status":NaN,"total_s":NaN,"first":NaN}',
        b'{"status":1e999,"total_s":1e999,"first":[1e999]}',
        b'{"status":200,"x":' + b"[" * 20_000 + b"]" * 20_000 + b"}",
    ],
)
def test_what_is_no_json_of_that_kind_is_malformed_and_nothing_else(read: Reader, payload: bytes) -> None:
    with pytest.raises(FrameMalformed):
        read(payload)


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**60), 2**60)
    | st.floats(allow_nan=False)
    | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=9), inner, max_size=3),
    max_leaves=6,
)
MEMBERS = st.sampled_from(
    [*OPEN, "status", "usage", "credit", "via", "where", "expected", "total_s", "began"]
)


@given(st.sampled_from(READERS), st.dictionaries(MEMBERS, JSON, max_size=8))
def test_any_json_is_read_or_malformed(read: Reader, said: dict[str, Any]) -> None:
    try:
        message = read(orjson.dumps(OPEN | said))
    except FrameMalformed:
        return
    assert read(message.to_payload()) == message
