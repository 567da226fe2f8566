"""A binary tensor that is not as long as it says is refused with what is wrong."""

from collections.abc import AsyncIterator
from typing import Any

import orjson
import pytest

from gateway.domain.errors import BadRequest
from gateway.domain.request import RequestBody
from gateway.pipeline.tensors import JSON_BYTES, check_tensors


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
