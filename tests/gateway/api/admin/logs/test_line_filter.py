"""Which lines are wanted."""

import json
from typing import Any

import pytest

from gateway.api.admin.logs.line_filter import BadLineFilter, LineFilter, time_of

LINE = {
    **{"id": "r1", "trace_id": "t1", "model": "llama", "alias": "chat", "agent": "gpu-1", "level": "warning"},
    **{"event": "request", "logger": "gateway.fleet.session", "process": "w1"},
    **{"timestamp": "2026-05-01T12:00:00.5Z", "path": "/v1/Chat"},
}


@pytest.mark.parametrize(
    ("query", "taken"),
    [
        ({}, True),
        ({"level": "warning"}, True),
        ({"level": "error"}, False),
        ({"logger": "gateway.fleet"}, True),
        ({"logger": "gateway.fleet.session"}, True),
        ({"logger": "gateway.fl"}, False),
        ({"id": "r1", "trace_id": "t1", "agent": "gpu-1", "process": "w1"}, True),
        ({"id": "r2"}, False),
        ({"process": "w2"}, False),
        ({"model": "llama"}, True),
        ({"model": "chat"}, True),
        ({"model": "other"}, False),
        ({"text": "/V1/CHAT"}, True),
        ({"text": "nowhere"}, False),
        ({"since": "1777636800"}, True),
        ({"since": "1777636801"}, False),
        ({"lines": "0", "follow": "true"}, True),
    ],
)
def test_a_line_is_wanted_that_has_all_that_is_asked_for(query: dict[str, str], taken: bool) -> None:
    assert LineFilter.read(query).takes(json.dumps(LINE).encode()) is taken


def test_a_line_about_a_deployment_is_about_its_agent() -> None:
    line = json.dumps({"deployment": "gpu-1/vllm/llama"}).encode()
    assert LineFilter.read({"agent": "gpu-1"}).takes(line)
    assert not LineFilter.read({"agent": "gpu"}).takes(line)


def test_what_processes_ask_each_other_is_left_out_unless_it_fails() -> None:
    def line(status: int) -> bytes:
        return b'{"path":"/cluster/w2/logs","status":%d}' % status

    assert not LineFilter().takes(line(200))
    assert LineFilter().takes(line(401))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("x", "1"), ("level", "loud"), ("follow", "1"), ("since", "nan"), ("since", "-1")),
        *(("lines", "-1"), ("lines", "10001"), ("lines", "1" * 30), ("lines", "²"), ("text", "x" * 201)),
    ],
)
def test_what_cannot_be_asked_for_is_named(name: str, value: str) -> None:
    with pytest.raises(BadLineFilter) as caught:
        LineFilter.read({name: value})
    assert caught.value.parameter == name


@pytest.mark.parametrize("timestamp", [None, "", "yesterday", 5])
def test_a_line_without_a_time_is_of_the_beginning(timestamp: Any) -> None:
    assert time_of({"timestamp": timestamp}) == 0.0
    assert time_of(LINE) == 1777636800.5
