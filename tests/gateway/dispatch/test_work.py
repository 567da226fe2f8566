"""What a request for pictures or videos says of how much work it is."""

from collections.abc import AsyncIterator
from typing import Any

import orjson
import pytest

from gateway.dispatch.work import JSON_BYTES, RequestedWork, asked_work
from gateway.domain.request import RequestBody
from shared.protocol.work import WorkScale

NODES = {"1": {"inputs": {"width": 1000, "height": 1000}}, "2": {"inputs": {"steps": 20}}}


def asked(route: str, said: Any, path: str = "/v1/workflows/w") -> RequestedWork | None:
    body = said if isinstance(said, bytes) else orjson.dumps(said)
    return asked_work(route, path, RequestBody(body))


def test_a_workflow_is_asked_for_with_its_inputs() -> None:
    found = asked("workflows", {"inputs": {"steps": 30, "prompt": "9 lives", "width": "512", "seed": -1}})
    assert found == RequestedWork({"steps": 30.0, "width": 512.0})


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b'{"inputs": 3}', b"--x\r\n", b"{}"])
def test_a_body_that_says_nothing_is_a_request_without_inputs(body: bytes) -> None:
    assert asked("workflows", body) == RequestedWork({})


def test_a_workflow_that_a_request_brings_is_counted_itself() -> None:
    assert asked("workflows", {"workflow": NODES}) == RequestedWork({}, 20.0)
    assert asked("any", {"prompt": NODES}, "/prompt?x=1") == RequestedWork({}, 20.0)
    assert asked("any", {"prompt": "a text"}, "/api/prompt") == RequestedWork({})


def test_requests_for_something_else_are_not_looked_at() -> None:
    assert asked("any", {"prompt": NODES}, "/history") is None


def test_openais_requests_say_sizes_and_numbers_their_way() -> None:
    members = {"size": "1024x512", "n": 2, "seconds": "8", "quality": "high", "stream": True}
    found = asked("images", members)
    assert found == RequestedWork({"size": 1024.0 * 512, "n": 2.0, "seconds": 8.0})
    for size in ("auto", "x", "10x", "9" * 9 + "x" + "9" * 9, 7.5e300):
        assert asked("videos", {"size": size}) == RequestedWork({})


def test_what_is_long_or_still_to_come_is_not_read() -> None:
    async def rest() -> AsyncIterator[bytes]:
        yield b"}"

    said = orjson.dumps({"inputs": {"steps": 30}, "filler": "x" * JSON_BYTES})
    assert asked("workflows", said) == RequestedWork({})
    begun = RequestBody(b'{"inputs":{"steps":30}', rest(), 23)
    assert asked_work("workflows", "/v1/workflows/w", begun) == RequestedWork({})


def test_work_is_that_of_the_workflow_that_is_brought_or_by_the_models_scale() -> None:
    scale = WorkScale(10.0, {"steps": 20.0})
    assert RequestedWork({"steps": 40.0}).units_by(scale) == 20.0
    assert RequestedWork({"steps": 40.0}, 7.0).units_by(scale) == 7.0
    assert RequestedWork({"steps": 40.0}).units_by(None) is None
