"""The command, as scripts call it."""

import io
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import structlog
import typer
from typer.testing import CliRunner

from agent import cli
from agent.config.config import AgentConfig
from shared.process.logs import configure_logs
from tests.support.identities import TOKEN

URL = "http://127.0.0.1:9"


def invoke(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> tuple[int, dict[str, Any], Path | None]:
    """The exit code, flags and file that the command line comes to."""
    seen: list[tuple[dict[str, Any], Path | None]] = []

    def run(flags: dict[str, Any], file: Path | None) -> int:
        seen.append((flags, file))
        return 0

    monkeypatch.setattr(cli, "run", run)
    app = typer.Typer()
    cli.register(app)
    app.command("other")(lambda: None)
    result = CliRunner().invoke(app, ["agent", *arguments])
    return (result.exit_code, *(seen[0] if seen else ({}, None)))


def test_the_stable_flags_are_understood(monkeypatch: pytest.MonkeyPatch) -> None:
    arguments = (
        "--gateway G --join T --engine A --engine B --torch demo --state S --name N --slots 4 --label a=b"
    )
    code, flags, file = invoke(monkeypatch, *arguments.split(), "--config", "F")
    assert (code, file) == (0, Path("F"))
    assert flags == {
        "gateway": "G",
        "join": "T",
        "engine": [{"url": "A"}, {"url": "B"}, {"torch": "demo"}],
        "state": Path("S"),
        "name": "N",
        "slots": 4,
        "labels": ["a=b"],
    }


def test_a_flag_that_is_not_given_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    assert invoke(monkeypatch) == (0, {}, None)
    assert invoke(monkeypatch, "--no-find-engines")[1] == {"find_engines": False}


def test_wrong_usage_is_code_2(monkeypatch: pytest.MonkeyPatch) -> None:
    assert invoke(monkeypatch, "--no-such-flag")[0] == 2
    assert invoke(monkeypatch, "--slots", "many")[0] == 2


def python_m_agent(*arguments: str, **environment: str) -> "subprocess.CompletedProcess[str]":
    clean = {name: value for name, value in os.environ.items() if not name.startswith("TRUNKLINE_")}
    return subprocess.run(
        [sys.executable, "-m", "agent", *arguments],
        env={**clean, **environment},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_python_m_agent_is_the_same_command_and_errors_go_to_stderr() -> None:
    wrong = python_m_agent("--gateway", "http://10.0.0.1")
    assert (wrong.returncode, wrong.stdout) == (2, "")
    assert "http:// goes to loopback only" in wrong.stderr


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("--state", ""), "a path is not empty"),
        (("--label", os.fsdecode(b"a=\xff")), "bytes that are no text"),
        (("--slots", "many"), "'many' is no whole number"),
    ],
)
def test_python_m_agent_refuses_what_the_command_refuses(arguments: tuple[str, ...], told: str) -> None:
    wrong = python_m_agent("--gateway", URL, *arguments)
    assert wrong.returncode == 2
    assert told in " ".join(wrong.stderr.replace("│", "").split())


@pytest.mark.usefixtures("_logging")
def test_who_has_not_joined_is_told_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run({"gateway": URL, "state": tmp_path, "find_engines": False}, None) == 1
    said = capsys.readouterr()
    assert said.out == ""
    assert "has not joined a gateway yet" in said.err


@pytest.mark.usefixtures("_logging")
def test_a_secret_in_a_misspelt_variable_is_not_repeated(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TRUNKLINE_AGENT_JION", TOKEN.encode())
    assert cli.run({"gateway": URL}, None) == 2
    said = capsys.readouterr()
    assert "JION" in said.err
    assert TOKEN.encode() not in said.out + said.err


def test_the_built_in_engine_without_its_packages_is_wrong_usage_in_one_line(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("agent.engines.torch.startup.is_installed", lambda: False)
    flags = {"gateway": URL, "join": TOKEN.encode(), "state": tmp_path, "engine": [{"torch": "demo"}]}
    assert cli.run(flags, None) == 2
    said = capsys.readouterr().err.strip()
    assert said.endswith("pip install 'trunkline[torch]'")
    assert "\n" not in said


def test_an_agent_can_be_imported_where_the_modules_of_posix_are_not_there() -> None:
    absent = "sys.modules.update(dict.fromkeys(('fcntl', 'grp', 'pwd', 'resource', 'termios', 'uvloop')))"
    code = f"import sys; {absent}; import agent.app, agent.config.sources, agent.diagnosis.host"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_help_shows_an_example() -> None:
    helped = python_m_agent("--help")
    assert helped.returncode == 0
    assert "--engine" in helped.stdout
    assert "trunkline agent --gateway" in helped.stdout


@pytest.fixture
def _logging() -> Any:
    yield
    structlog.reset_defaults()


@pytest.mark.usefixtures("_logging")
def test_logs_are_lines_of_json_when_asked_for() -> None:
    out = io.StringIO()
    configure_logs("info", "json", stream=out)
    log = structlog.get_logger("agent")
    log.debug("not this")
    log.info("connected", gateway="abc")
    try:
        raise RuntimeError("broken")
    except RuntimeError:
        log.exception("failed")
    first, second = [json.loads(line) for line in out.getvalue().splitlines()]
    assert (first["event"], first["level"], first["gateway"]) == ("connected", "info", "abc")
    assert "RuntimeError: broken" in second["exception"]


@pytest.mark.usefixtures("_logging")
@pytest.mark.parametrize(("given", "is_json"), [({}, True), ({"log_format": "text"}, False)])
def test_the_log_is_json_off_a_terminal_unless_text_is_asked_for(
    given: dict[str, Any],
    is_json: bool,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    async def serve(config: AgentConfig) -> None:
        structlog.get_logger("agent").info("connected", gateway="abc")

    monkeypatch.delenv("TRUNKLINE_AGENT_LOG_FORMAT", raising=False)
    monkeypatch.setattr("agent.app.serve", serve)
    assert cli.run({"gateway": URL, "state": tmp_path, **given}, None) == 0
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("{") is is_json
    assert "connected" in line


@pytest.mark.usefixtures("_logging")
def test_logs_are_readable_and_without_colours_off_a_terminal() -> None:
    out = io.StringIO()
    configure_logs("info", "text", stream=out)
    structlog.get_logger("agent").warning("disconnected", reason="x")
    assert "disconnected" in out.getvalue()
    assert "\x1b" not in out.getvalue()
