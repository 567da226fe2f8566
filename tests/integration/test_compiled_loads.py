"""The loads that need a compiled engine, small: that all is measured, not how good it is."""

from pathlib import Path

import pytest

from tests.bench import access, memory, scale
from tests.bench.peers import report, tools
from tests.bench.peers.run import run
from tests.bench.peers.workloads import Scale
from tests.support import programs
from tests.support.processes import House

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(tools.missing() is not None, reason=str(tools.missing())),
]

_SMALL = Scale(
    seconds=0.5, streams=20, connections=8, stream_tokens=10, ramp_s=0.2, warm_s=0.1, body_bytes=5_000_000
)


@pytest.mark.skipif(
    programs.find("nginx") is None, reason="no nginx (on Debian: apt-get install nginx-light)"
)
def test_ours_and_nginx_are_put_through_every_workload_without_an_error() -> None:
    seen = run(
        ["direct", "trunkline", "nginx"],
        _SMALL,
        1,
        only=["unary", "paced", "down", "up"],
        say=lambda line: None,
    )
    assert seen.failed == []
    for workload in seen.workloads:
        for peer in ("direct", "trunkline", "nginx"):
            figures = seen.of(peer, workload.name)
            assert figures is not None, (peer, workload.name)
            assert figures["errors"] == 0, (peer, workload.name)
    paced = seen.of("trunkline", "paced")
    assert paced is not None
    assert set(paced["cpu_us"]) == {"gateway", "agent"}
    assert "CPU µs/token, paced" in report.rows(seen)[0]


def test_memory_is_told_for_each_tunnel_client_and_stream(tmp_path: Path) -> None:
    assert memory.missing(6, 10, 30) is None
    with House(tmp_path) as house:
        seen = memory.run(house, 6, 10, 30, interval_s=0.2, settle_s=0.1)
    assert seen.streams_open == seen.streams
    assert seen.met
    assert 0 < seen.gateway_empty_bytes < seen.gateway_streams_bytes


def test_costs_are_told_for_each_size() -> None:
    seen = scale.run(scale.Sizes((), (3,), (), tokens_per_s=200, seconds=1.0, agents_streams=10))
    assert {name: [point.size for point in points] for name, points in seen.curves.items()} == {
        "a token, by agents": [3],
        "a request, by agents and models": [3],
    }
    assert all(point.per_s > 0 for points in seen.curves.values() for point in points)


def test_costs_are_told_for_each_kind_of_key(tmp_path: Path) -> None:
    with House(tmp_path) as house:
        seen = access.run(house, rounds=1, seconds=0.5)
    assert len(seen.keys) == 3
    for cost in seen.keys:
        assert cost.failed == 0, cost
        assert cost.requests > 0, cost
        assert 0 < cost.cpu_us < 1_000_000, cost
