"""``trunkline scaling`` against a server that says what a gateway says."""

import json
from typing import Any

import pytest
import typer
from typer.testing import CliRunner, Result

from gateway.cli import scaling
from gateway.cli.scaling import register
from tests.gateway.cli.test_live import Server, server

__all__ = ["server"]

ONE = {"ready": 3, "starting": 0, "wanted": 1, "queued_gpu_s": 1.5, "ends": ["gpu-1", "gpu-2"]}
SAID = {
    "models": {
        "llama": {
            "why": "0.1 requests/s",
            "classes": {"l4": ONE, "h100": {**ONE, "ready": 0, "wanted": 0, "ends": []}},
            "options": [{"device": "l4", "cost_hour": 0.8}, {"device": "h100", "cost_hour": None}],
        }
    }
}


def run(server: Server, *words: str) -> Result:
    app = typer.Typer()
    register(app)
    return CliRunner().invoke(app, ["--url", server.url, "--key", "sk-tl-secret", *words])


def test_a_line_for_each_class_says_what_is_wanted_and_who_would_end(server: Server) -> None:
    server.answers["GET", "/admin/scaling"] = [(200, SAID)]
    result = run(server)
    lines = result.stdout.splitlines()
    assert lines[0].split()[:5] == ["MODEL", "CLASS", "READY", "STARTING", "WANTED"]
    assert lines[1].split()[:5] == ["llama", "h100", "0", "0", "0"]
    assert lines[2].split()[:9] == ["llama", "l4", "3", "0", "1", "1.5", "0.8", "gpu-1", "gpu-2"]
    assert "0.1 requests/s" in lines[1]


def test_each_forecast_says_on_demand_why_it_acts_or_does_not(server: Server) -> None:
    ahead = {"state": "acting", "why": "it beats", "error": 0.12, "error_as_now": 0.2, "upper_gpu_s": 3.5}
    learning: dict[str, Any] = {
        "state": "learning",
        "why": "2 days",
        "error": None,
        "upper_gpu_s": None,
        "events": [],
    }
    classes = {
        "l4": {**ONE, "forecast": {**ahead, "events": ["launch"]}},
        "h100": {**ONE, "forecast": learning},
    }
    said = {"models": {"llama": {**SAID["models"]["llama"], "classes": classes}}}
    server.answers["GET", "/admin/scaling"] = [(200, said), (200, said)]
    assert "acting 12%" in run(server).stdout
    lines = run(server, "--forecast").stdout.splitlines()
    assert lines[-2] == "llama on h100: learning: 2 days"
    assert lines[-1] == (
        "llama on l4: acting: it beats; off by 12.0% on days it had not seen (20.0% if all stayed as it is); "
        "3.5 device-seconds/s are foreseen at the most; events: launch"
    )


def test_json_is_all_that_the_gateway_says(server: Server) -> None:
    server.answers["GET", "/admin/scaling"] = [(200, SAID)]
    assert json.loads(run(server, "--json").stdout) == SAID["models"]


def test_watching_asks_again_until_it_is_ended(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    server.answers["GET", "/admin/scaling"] = [(200, SAID)]
    waits: list[float] = []

    def sleep(seconds: float) -> Any:
        waits.append(seconds)
        if len(waits) == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr("gateway.cli.scaling.time.sleep", sleep)
    result = run(server, "--watch")
    assert result.stdout.count("MODEL") == 2
    assert waits == [scaling.WATCH_S] * 2
