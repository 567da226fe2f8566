"""``trunkline top --once`` and ``--json``, and what is said where nothing can be shown."""

import asyncio
import importlib.util
import json
import sys
from collections.abc import AsyncIterator

import pytest
import typer
from typer.testing import CliRunner, Result

from gateway.tools.top.command import register, top
from gateway.tools.top.options import TopOptions
from tests.support.staged_gateway import KEY, StagedGateway, fleet

REQUEST = {"id": "req_1", "process": "gateway", "at": 1789999990.0, "state": "failed", "status": 503}


@pytest.fixture
async def stage() -> AsyncIterator[StagedGateway]:
    async with StagedGateway(fleet(3, 1), {"/admin/requests": {"requests": [REQUEST]}}) as made:
        yield made


async def run(stage: StagedGateway, *arguments: str, key: str = KEY) -> Result:
    app = typer.Typer()
    app.callback()(lambda: None)
    register(app)
    environment = {"TRUNKLINE_URL": stage.url, "TRUNKLINE_KEY": key, "TERM": "dumb", "COLUMNS": "200"}
    return await asyncio.to_thread(CliRunner().invoke, app, ["top", *arguments], env=environment)


async def test_one_look_is_a_plain_table_with_the_sums_beside_it(stage: StagedGateway) -> None:
    result = await run(stage, "--once", "--filter", "gpu", "--sort=-host", "-n", "2")
    assert result.exit_code == 0
    lines = [line.split()[:2] for line in result.stdout.splitlines()]
    assert lines == [["HOST", "MODEL"], ["gpu-002", "mistral-small"], ["gpu-001", "qwen-2.5-32b"]]
    assert result.stderr.startswith("3 hosts, 3 deployments")
    failed = await run(stage, "--once", "--view", "requests", "--kind", "failed")
    assert "req_1" in failed.stdout
    nothing = await run(stage, "--once", "--filter", "nowhere")
    assert (nothing.stdout, nothing.stderr.splitlines()[-1]) == ("", "no row holds these words")


async def test_json_is_one_look_at_everything(stage: StagedGateway) -> None:
    found = json.loads((await run(stage, "--json")).stdout)
    assert len(found["deployments"]) == len(found["agents"]) == 3
    assert [each["id"] for each in found["requests"]] == ["req_1"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--once", "--sort", "nothing"], "has no column 'nothing'; it has host, model"),
        (["--lines", "3"], "is for --once"),
        (["--once", "--view", "x"], "'x' is not one of"),
        ([], "top needs a terminal; in scripts: trunkline top --once"),
    ],
)
async def test_wrong_usage_is_told(stage: StagedGateway, arguments: list[str], said: str) -> None:
    result = await run(stage, *arguments)
    assert result.exit_code == 2
    assert said in " ".join(result.stderr.replace("│", " ").split())
    assert stage.last_ids == []


async def test_what_the_gateway_refuses_is_told_in_its_words(stage: StagedGateway) -> None:
    result = await run(stage, "--once", key="sk-tl-other")
    assert (result.exit_code, result.stderr) == (1, "trunkline: This gateway knows no such key\n")
    stage.refused["/admin/events"] = (403, "This takes the role 'viewer', and this key has none.")
    result = await run(stage, "--once")
    assert (result.exit_code, result.stderr) == (
        1,
        "trunkline: This takes the role 'viewer', and this key has none\n",
    )


async def test_of_an_old_gateway_it_is_said_what_can_ask_it(stage: StagedGateway) -> None:
    stage.refused["/admin/events"] = (404, "There is nothing at /admin/events.")
    result = await run(stage, "--json")
    assert result.exit_code == 1
    assert "a version without live events" in result.stderr
    assert "`trunkline status`" in result.stderr


async def test_a_gateway_without_decision_records_is_shown_all_the_same(stage: StagedGateway) -> None:
    stage.refused["/admin/requests"] = (404, "There is nothing here.")
    assert len(json.loads((await run(stage, "--json")).stdout)["agents"]) == 3


async def test_without_textual_it_is_said_which_extra_has_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for each in (sys.stdin, sys.stdout, sys.stderr):
        monkeypatch.setattr(each, "isatty", lambda: True)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(typer.Exit):
        top(TopOptions(key="k"))
    assert "pip install 'trunkline[top]'" in capsys.readouterr().err
