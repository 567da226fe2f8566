"""The loads that need a compiled engine, small: that all is measured, not how good it is."""

from pathlib import Path

import pytest

from tests.bench import access, half_load, idle, memory, scale, shared
from tests.bench.peers import report, tools
from tests.bench.peers.run import run
from tests.bench.peers.workloads import Scale
from tests.support import programs
from tests.support.processes import House

pytestmark = [
    pytest.mark.slow,
    pytest.mark.long,
    pytest.mark.skipif(tools.missing() is not None, reason=str(tools.missing())),
]

_SMALL = Scale(
    seconds=0.2, streams=20, connections=8, stream_tokens=10, ramp_s=0.2, warm_s=0.1, body_bytes=5_000_000
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
    seen = scale.run(scale.Sizes((), (3,), (), tokens_per_s=200, seconds=0.3, agents_streams=10, calm_s=0.3))
    assert {name: [point.size for point in points] for name, points in seen.curves.items()} == {
        "a token, by agents": [3],
        "a request, by agents and models": [3],
    }
    assert all(point.per_s > 0 for points in seen.curves.values() for point in points)


def test_costs_are_told_for_each_kind_of_key(tmp_path: Path) -> None:
    with House(tmp_path) as house:
        seen = access.run(house, rounds=1, seconds=0.2)
    assert len(seen.keys) == 3
    for cost in seen.keys:
        assert cost.failed == 0, cost
        assert cost.requests > 0, cost
        assert 0 < cost.cpu_us < 1_000_000, cost


def test_latencies_are_told_at_half_of_what_is_carried(tmp_path: Path) -> None:
    sizes = half_load.HalfLoadSizes(
        tokens=5,
        tokens_per_s=50,
        first_requests_per_s=2.0,
        probe_s=1.0,
        unary_s=0.2,
        seconds=1.0,
        most_requests_per_s=4.0,
    )
    with House(tmp_path) as house:
        seen = half_load.run(house, sizes)
    assert 2.0 <= seen.saturation_per_s <= 4.0
    assert seen.offered_per_s == seen.saturation_per_s / 2
    assert seen.tokens_per_s > 0
    assert 0 < seen.one_way_p50_ms <= seen.one_way_p99_ms
    assert seen.unary_added_p50_ms > 0


def test_costs_are_told_for_each_shared_part(tmp_path: Path) -> None:
    sizes = shared.SharedSizes(60, rpm=5, tight_s=0.5, tight_per_s=40.0, warm_requests=20, idle_s=0.5)
    seen = shared.run(tmp_path, sizes, only=("SQLite, one process", "PostgreSQL and Redis"))
    assert len(seen.setups) == 2
    for cost in seen.setups:
        assert cost.failed == 0, cost
        assert cost.gateway_us > 0, cost
        assert 0 < cost.p50_ms <= cost.p99_ms, cost
        assert 0 < cost.admitted <= cost.limit < cost.asked, cost
    files, both = seen.setups
    assert (files.store_trips, files.redis_trips) == (None, None)
    assert both.store_trips is not None
    assert both.redis_trips is not None
    assert both.idle_trips_per_s > 0


def test_memory_and_idle_cpu_are_told_of_several_processes_with_many_agents(tmp_path: Path) -> None:
    assert idle.missing(8, 2) is None
    with House(tmp_path) as house:
        seen = idle.run(house, 8, 2, 1.0, settle_s=0.5)
    assert (seen.agents, seen.sessions, len(seen.processes)) == (8, 16, 2)
    for process in seen.processes:
        assert process.rss_mb > seen.empty_rss_mb / 2
        assert 0 <= process.cpu_s_per_s < 1
    assert seen.store_trips_per_s > 0
    assert seen.store_cpu_s_per_s >= 0
