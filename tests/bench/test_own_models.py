"""The load of an own model, once and small."""

import pytest

from tests.bench.own_models import OwnModelFigures, measure


def test_our_server_is_measured() -> None:
    pytest.importorskip("numpy")
    figures = measure("ours", "", 8, 0.5)
    assert figures.requests > 8
    assert 0 < figures.p50_ms <= figures.p99_ms
    assert figures.cpu_ms > 0
    assert "8 connections" in str(OwnModelFigures((figures,), 8, "not installed"))
