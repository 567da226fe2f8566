"""What commands say where a process of the gateway does not answer."""

import pytest

from tests.gateway.cli.test_live import AGENT, MODEL, Server, run, server

__all__ = ["server"]


def test_drain_waits_for_processes_that_do_not_say_what_runs_there(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.cli.live.POLL_S", 0.0)
    server.answers["POST", "/admin/agents/gpu-1/drain"] = [(200, {"streams": 0, "missing": ["w-2"]})]
    idle, partly = {"agents": [{**AGENT, "streams": 0}]}, {"missing": ["w-2"]}
    server.answers["GET", "/admin/agents"] = [
        (200, idle | partly),
        (200, idle | partly),
        (200, {"agents": [AGENT]}),
        (200, idle),
    ]
    result = run(server, "drain", "gpu-1")
    assert result.exit_code == 0
    assert len([each for each in server.asked if each[:2] == ("GET", "/admin/agents")]) == 4
    assert result.stderr.count("they do not answer: w-2") == 1


def test_models_says_which_processes_do_not_answer(server: Server) -> None:
    server.answers["GET", "/admin/models"] = [(200, {"models": [MODEL], "missing": ["w-2", "w-1"]})]
    assert "is missing below, they do not answer: w-1, w-2" in run(server, "models").stderr
