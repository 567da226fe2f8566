"""The load of an own model, once and small."""

import pytest

from tests.bench.own_models import OwnModelFigures, ServerFigures, measure


def test_our_server_is_measured() -> None:
    pytest.importorskip("numpy")
    figures = measure("ours", 0, "", 8, 0.5, 40.0)
    assert figures.requests > 8
    assert 0 < figures.paced_p50_ms <= figures.paced_p99_ms
    assert figures.cpu_ms > 0
    told = str(OwnModelFigures((figures,), 8, "not installed"))
    assert "8 connections: requests/s" in told
    assert "40 requests/s: p50 ms" in told
    assert "LitServe: not installed" in told


def test_servers_are_compared_round_by_round() -> None:
    rounds = [
        ServerFigures(server, number, 1, per_s, 1.0, 100.0, 1.0, 2.0, 1.0)
        for server, rates in (("ours", (30.0, 10.0)), ("litserve", (20.0, 5.0)))
        for number, per_s in enumerate(rates)
    ]
    assert "ours × 1.75 (1.50 to 2.00)" in str(OwnModelFigures(tuple(rounds), 8))
