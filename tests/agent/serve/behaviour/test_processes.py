"""How a model's processes begin and end."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from agent.serve.options import read_line
from tests.agent.serve.running import make_server, running, why_not


@pytest.mark.parametrize(
    ("name", "words", "unrecoverable"),
    [
        ("Unloadable", "load raised ValueError: no weights here", False),
        ("Unprepared", "prepare raised ValueError: no tokenizer here", False),
        ("Missing", "has no Missing", True),
        ("NotAModel", "is not a subclass of agent.serve.Model", True),
        ("TooWide", "max_batch is 0", True),
        ("NeverLoaded", "loading did not end within 0.2 s", False),
        ("Warmed", "warm_up raised RuntimeError: cold", False),
        ("Exiting", "load raised SystemExit: 3", False),
        ("Killed", "SIGKILL", False),
    ],
)
async def test_a_model_that_cannot_be_loaded_says_why(
    name: str, words: str, unrecoverable: bool, tmp_path: Path
) -> None:
    end = await why_not(name, tmp_path)
    assert words in end.reason
    assert end.unrecoverable is unrecoverable
    assert os.listdir(tmp_path) == []


async def test_a_server_is_ready_when_the_model_is_warm(tmp_path: Path) -> None:
    async with running("Slow", tmp_path) as model:
        assert await model.ask([1]) == ["warm"]


async def test_a_server_that_is_closed_while_it_loads_leaves_nothing(tmp_path: Path) -> None:
    server = make_server("NeverLoaded", tmp_path)
    await server.close()
    assert os.listdir(tmp_path) == []


async def test_what_a_model_prints_does_not_get_between_its_messages(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    async with running("Talkative", tmp_path) as model:
        assert await model.ask([1]) == [1]
    assert "printed in predict" in capfd.readouterr().err


async def test_what_a_model_prints_is_not_taken_for_what_its_server_says(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    async with running("Reporting", tmp_path) as model:
        assert await model.ask([1]) == [1]
    printed = capfd.readouterr().err.splitlines()
    assert {'{"progress": 0.5}', '{"loading":"weights"}', '{"failed": {}}'} <= {
        each.strip() for each in printed
    }
    assert [read_line(line) for line in printed if read_line(line) is not None] == []


def test_the_processes_import_nothing_of_the_agent_that_takes_long() -> None:
    code = """import sys, agent.serve.__main__, agent.serve.worker
sys.exit(", ".join({"pydantic", "shared.protocol.messages", "aiohttp", "torch"} & set(sys.modules)) or 0)"""
    done = subprocess.run([sys.executable, "-c", code], stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 0, done.stderr
