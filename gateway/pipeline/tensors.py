"""What a request of KServe's Open Inference Protocol says of itself: lengths, priority, timeout. Pure.

Its parameters ``priority`` and ``timeout`` are those of Triton's schedule policy extension: 1 is the highest
priority, greater ones are lower, and 0 is none; the timeout is in microseconds.

``Inference-Header-Content-Length`` is the length of the JSON at the body's beginning; what follows are the
tensors, one after the other, each as long as its ``binary_data_size``. Engines differ in what they make of a
size that is wrong: some wait, some read the next tensor's bytes.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import orjson

from gateway.domain.errors import BadRequest
from gateway.domain.request import RequestBody

SIZE_OF_JSON = b"inference-header-content-length"

JSON_BYTES = 64 * 1024
"""A longer JSON part is left to the engine: to read it would stop the event loop for too long."""

TENSORS = 1024
DIMENSIONS = 64

_BYTES = {
    **dict.fromkeys(("BOOL", "INT8", "UINT8"), 1),
    **dict.fromkeys(("INT16", "UINT16", "FP16", "BF16"), 2),
    **dict.fromkeys(("INT32", "UINT32", "FP32"), 4),
    **dict.fromkeys(("INT64", "UINT64", "FP64"), 8),
}
"""Data type → the bytes of one element; those of ``BYTES`` have lengths of their own."""


TIMEOUT = "timeout_s"
"""The member in which :func:`read_parameters` gives the timeout."""

_HIGH, _LOW = "priority", "flex"
"""Values of OpenAI's ``service_tier``."""


def read_parameters(fields: Mapping[bytes, bytes], body: RequestBody) -> Mapping[str, Any]:
    """What the request asks of scheduling, as members of other requests are called: ``service_tier``, and
    :data:`TIMEOUT` in seconds. Priority 1 is realtime's, 2 standard's, and what is lower batch's. Nothing
    where the JSON is longer than :data:`JSON_BYTES`, or has not come whole.

    Raises BadRequest as :func:`check_tensors` does.
    """
    if SIZE_OF_JSON in fields:
        said = check_tensors(fields[SIZE_OF_JSON], body)
    elif body.rest is not None or body.held_bytes > JSON_BYTES or b'"parameters"' not in body.prefix:
        return {}
    else:
        said = _object(body.prefix)
    parameters = said.get("parameters") if isinstance(said, dict) else None
    if not isinstance(parameters, dict):
        return {}
    found: dict[str, Any] = {}
    priority, timeout_us = parameters.get("priority"), parameters.get("timeout")
    if type(priority) is int and priority > 0 and priority != 2:
        found["service_tier"] = _HIGH if priority == 1 else _LOW
    if type(timeout_us) is int and timeout_us > 0:
        found[TIMEOUT] = timeout_us / 1e6
    return found


def _object(data: bytes) -> Any:
    """None for what is no JSON, of which its engine tells."""
    try:
        return orjson.loads(data)
    except orjson.JSONDecodeError:
        return None


def check_tensors(size_of_json: bytes, body: RequestBody) -> Any:
    """The JSON at the beginning of ``body``; None where it is too long to be read, or has not come whole.

    Raises BadRequest when ``body`` is not as long as the JSON says. What has not come yet and is of no
    declared length is not known, and not compared.
    """
    if not size_of_json.isdigit() or len(size_of_json) > 18:
        raise _wrong("Inference-Header-Content-Length must be a number of bytes")
    json_bytes = int(size_of_json)
    whole_bytes = body.held_bytes if body.rest is None else body.size_bytes
    if whole_bytes is not None and json_bytes > whole_bytes:
        raise _wrong(
            f"Inference-Header-Content-Length says {json_bytes} bytes, and the body has {whole_bytes} in all"
        )
    if json_bytes > min(body.held_bytes, JSON_BYTES):
        return None
    try:
        said = orjson.loads(_beginning(body, json_bytes))
    except orjson.JSONDecodeError:
        raise _wrong("what stands before the tensors is no JSON") from None
    sizes_bytes = sum(_sizes(said))
    if whole_bytes is not None and json_bytes + sizes_bytes != whole_bytes:
        raise _wrong(
            f"the tensors are {sizes_bytes} bytes long by their binary_data_size, and "
            f"{whole_bytes - json_bytes} bytes follow the JSON"
        )
    return said


def _beginning(body: RequestBody, size_bytes: int) -> bytes:
    """The first bytes, without putting all of the body into one piece."""
    found = bytearray()
    for piece in body.pieces:
        found += piece[: size_bytes - len(found)]
        if len(found) >= size_bytes:
            break
    return bytes(found)


def _sizes(said: Any) -> Iterator[int]:
    """The sizes of the binary tensors, in bytes. Raises BadRequest for one that does not fit its shape."""
    inputs = said.get("inputs") if isinstance(said, dict) else None
    if not isinstance(inputs, list) or len(inputs) > TENSORS:
        raise _wrong(f"'inputs' must be a list of at most {TENSORS} tensors")
    for tensor in inputs:
        parameters = tensor.get("parameters") if isinstance(tensor, dict) else None
        size = parameters.get("binary_data_size") if isinstance(parameters, dict) else None
        if size is None:
            continue
        if not isinstance(size, int) or isinstance(size, bool) or size < 0:
            raise _wrong(f"{_name(tensor)}: binary_data_size must be a number of bytes")
        expected = _expected_bytes(tensor)
        if expected is not None and expected != size:
            raise _wrong(
                f"{_name(tensor)} of type {tensor['datatype']} and shape {tensor['shape']} has {expected} "
                f"bytes, and its binary_data_size is {size}"
            )
        yield size


def _expected_bytes(tensor: Mapping[str, Any]) -> int | None:
    """By its type and its shape; None where these do not tell."""
    datatype, shape = tensor.get("datatype"), tensor.get("shape")
    element_bytes = _BYTES.get(datatype) if isinstance(datatype, str) else None
    if element_bytes is None or not isinstance(shape, list) or len(shape) > DIMENSIONS:
        return None
    count = element_bytes
    for length in shape:
        if not isinstance(length, int) or isinstance(length, bool) or length < 0:
            return None
        count *= length
        if count > 2**63:
            return None
    return count


def _name(tensor: Mapping[str, Any]) -> str:
    name = tensor.get("name")
    return f"The tensor {name[:80] if isinstance(name, str) else ''!r}"


def _wrong(why: str) -> BadRequest:
    return BadRequest(f"{why[:1].upper()}{why[1:]}.", param="inputs", code="invalid_tensor")
