"""A binary tensor that is not as long as it says is refused with what is wrong."""

from collections.abc import AsyncIterator
from typing import Any

import orjson
import pytest

from gateway.domain.errors import BadRequest
from gateway.domain.request import RequestBody
from gateway.pipeline.tensors import JSON_BYTES, SIZE_OF_JSON, check_tensors, read_parameters


def tensor(size: Any, shape: Any = (2, 3), datatype: Any = "FP32") -> dict[str, Any]:
    return {"name": "x", "shape": shape, "datatype": datatype, "parameters": {"binary_data_size": size}}


def check(*tensors: Any, data: bytes, size_of_json: bytes | None = None) -> None:
    said = orjson.dumps({"inputs": list(tensors)})
    whole = said + data
    pieces = [whole[:5], whole[5:9], whole[9:]]
    check_tensors(size_of_json or b"%d" % len(said), RequestBody(pieces, None, len(whole)))


def test_tensors_that_are_as_long_as_they_say_pass() -> None:
    check(tensor(24), tensor(4, (4,), "BOOL"), tensor(9, (1,), "BYTES"), data=bytes(37))
    check({"name": "y", "shape": [1], "datatype": "INT32", "data": [1]}, tensor(24), data=bytes(24))
    check(tensor(0, (0, 5)), data=b"")


@pytest.mark.parametrize(
    ("tensors", "data", "message"),
    [
        ([tensor(24)], bytes(23), "24 bytes long by their binary_data_size, and 23 bytes follow"),
        ([tensor(24)], bytes(30), "and 30 bytes follow the JSON"),
        ([tensor(20)], bytes(20), r"'x' of type FP32 and shape \[2, 3\] has 24 bytes, and its .* is 20"),
        ([tensor(-1)], b"", "must be a number of bytes"),
        ([tensor(True)], b"", "must be a number of bytes"),
        ([tensor("24")], bytes(24), "must be a number of bytes"),
    ],
)
def test_one_whose_size_lies_is_refused(tensors: list[Any], data: bytes, message: str) -> None:
    with pytest.raises(BadRequest, match=message) as refused:
        check(*tensors, data=data)
    assert refused.value.status == 400


@pytest.mark.parametrize("name", [None, 5, "deep"])
def test_a_tensor_is_refused_whatever_its_name_is(name: Any) -> None:
    said = b'{"inputs":[{"name":%b,"parameters":{"binary_data_size":-1}}]}'
    said %= b"[" * 1000 + b"]" * 1000 if name == "deep" else orjson.dumps(name)
    with pytest.raises(BadRequest, match="The tensor '': binary_data_size must be"):
        check_tensors(b"%d" % len(said), RequestBody(said, None, len(said)))


@pytest.mark.parametrize("size", [b"-1", b"x", b"9" * 30, b"100000"])
def test_the_length_of_the_json_must_be_one(size: bytes) -> None:
    with pytest.raises(BadRequest, match="Inference-Header-Content-Length"):
        check(tensor(4, (1,)), data=bytes(4), size_of_json=size)


def test_what_is_no_json_is_refused() -> None:
    with pytest.raises(BadRequest, match="no JSON"):
        check_tensors(b"3", RequestBody(b"abcdef", None, 6))
    with pytest.raises(BadRequest, match="'inputs' must be a list"):
        check_tensors(b"2", RequestBody(b"[]", None, 2))


def test_what_cannot_be_known_is_left_to_the_engine() -> None:
    async def rest() -> AsyncIterator[bytes]:
        yield bytes(1)

    said = orjson.dumps({"inputs": [tensor(24)]})
    check_tensors(b"%d" % len(said), RequestBody(said, rest(), None))
    check_tensors(b"%d" % (JSON_BYTES + 1), RequestBody(bytes(JSON_BYTES + 1), None, JSON_BYTES + 1))
    check(tensor(7, (-1,)), tensor(3, "?", 5), data=bytes(10))


def test_a_declared_length_is_compared_before_the_rest_has_come() -> None:
    async def rest() -> AsyncIterator[bytes]:
        yield bytes(1)

    said = orjson.dumps({"inputs": [tensor(24)]})
    with pytest.raises(BadRequest, match="25 bytes follow the JSON"):
        check_tensors(b"%d" % len(said), RequestBody(said, rest(), len(said) + 25))


def parameters(said: dict[str, Any], data: bytes | None = None) -> Any:
    """What is read of a request with these ``parameters``, with or without binary tensors."""
    begins = orjson.dumps({"inputs": [] if data is None else [tensor(len(data))], "parameters": said})
    whole = begins + (data or b"")
    fields = {} if data is None else {SIZE_OF_JSON: b"%d" % len(begins)}
    return read_parameters(fields, RequestBody([whole[:7], whole[7:]], None, len(whole)))


@pytest.mark.parametrize("data", [None, bytes(24)])
@pytest.mark.parametrize(
    ("said", "found"),
    [
        ({"priority": 1}, {"service_tier": "priority"}),
        ({"priority": 2}, {}),
        ({"priority": 3}, {"service_tier": "flex"}),
        ({"priority": 0}, {}),
        ({"priority": True}, {}),
        ({"priority": "1"}, {}),
        ({"timeout": 2_500_000}, {"timeout_s": 2.5}),
        ({"timeout": 0}, {}),
        ({"timeout": -1, "priority": -1}, {}),
        ({"timeout": 1, "priority": 9}, {"service_tier": "flex", "timeout_s": 1e-6}),
        ({"sequence_id": 5}, {}),
    ],
)
def test_priority_and_timeout_are_read(said: Any, found: Any, data: bytes | None) -> None:
    assert parameters(said, data) == found


def test_what_is_no_json_or_too_long_says_nothing() -> None:
    for body in (b'{"parameters": 5}', b'no "parameters"', b"", b'["parameters"]'):
        assert read_parameters({}, RequestBody(body, None, len(body))) == {}
    long = orjson.dumps({"inputs": ["x" * JSON_BYTES], "parameters": {"priority": 1}})
    assert read_parameters({}, RequestBody(long, None, len(long))) == {}
