"""What is copied from ``deploy/examples``: files of engines, scripts of boxes and jobs, SkyPilot's task."""

import os
import re
import signal
import subprocess
from pathlib import Path

import pytest
import yaml  # type: ignore[import-untyped, unused-ignore]

from agent.config.sources import load
from tests.support import containerfile, deploy_tools
from tests.support.deployed_settings import unknown_variables, wrong_words
from tests.support.processes import until

_ROOT = Path(__file__).parents[2]
_EXAMPLES = _ROOT / "deploy" / "examples"
_ENGINES = sorted((_EXAMPLES / "engines").glob("*.toml"))
_SCRIPTS = [_EXAMPLES / name for name in ("box/start", "slurm.sbatch", "scale_slurm")]
_SKYPILOT = _EXAMPLES / "skypilot.yaml"
_GATEWAY = "https://llm.example.com"
_STUB = """#!/usr/bin/env bash
env > "$RECORD/environment"
printf '%s\\n' "$@" > "$RECORD/arguments"
if [ -n "${HOLD:-}" ]; then
    trap 'touch "$RECORD/drained"; exit 0' TERM
    touch "$RECORD/runs"
    while :; do sleep 0.05; done
fi
"""
"""In place of ``trunkline``: writes down how it was started, and lives until it is told to end."""


@pytest.fixture
def clean(tmp_path: Path) -> dict[str, str]:
    """The environment of a box: its own home, and a recorder for trunkline."""
    program = tmp_path / "bin" / "trunkline"
    program.parent.mkdir()
    program.write_text(_STUB)
    program.chmod(0o755)
    return {
        "PATH": f"{program.parent}:{os.environ['PATH']}",
        "HOME": str(tmp_path),
        "RECORD": str(tmp_path),
        "TRUNKLINE_AGENT_GATEWAY": _GATEWAY,
    }


def _run(script: str, environment: dict[str, str]) -> "subprocess.CompletedProcess[str]":
    command = ["bash", str(_EXAMPLES / script)]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)


def _started(directory: Path) -> tuple[dict[str, str], list[str]]:
    lines = (directory / "environment").read_text().splitlines()
    arguments = (directory / "arguments").read_text().splitlines()
    return dict(line.split("=", 1) for line in lines if "=" in line), arguments


@pytest.mark.parametrize("file", _ENGINES, ids=lambda file: file.stem)
def test_the_agent_takes_an_engines_file(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("TRUNKLINE_AGENT_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("TRUNKLINE_AGENT_GATEWAY", _GATEWAY)
    settings = load({}, file)
    (engine,) = settings.engines
    assert engine.name == file.stem
    assert settings.drain_s >= 60
    starts = engine.command is not None
    assert starts == (file.stem in ("vllm", "sglang", "llama-cpp"))
    if starts:
        assert not engine.on_demand
        assert engine.models


def test_there_is_a_file_for_each_engine_that_the_page_names() -> None:
    page = (_ROOT / "docs" / "deploy.md").read_text()
    for path in (
        *_ENGINES,
        *_SCRIPTS,
        _SKYPILOT,
        _EXAMPLES / "scale_salad.py",
        _EXAMPLES / "box/Containerfile",
    ):
        assert f"deploy/examples/{path.relative_to(_EXAMPLES)}" in page, path


def test_what_examples_call_is_what_the_command_line_knows() -> None:
    called = 0
    for path in (*_ENGINES, *_SCRIPTS, _SKYPILOT):
        text = path.read_text().replace('"${TRUNKLINE:-$HOME/trunkline/.venv/bin/trunkline}"', "trunkline")
        for call in re.findall(r"\btrunkline ((?:agent|token|drain) [^|>\n]*)", text):
            assert wrong_words(call.partition("  ")[0].split()) == [], path
            called += 1
        names = set(re.findall(r"\bTRUNKLINE_AGENT_[A-Z_]+", text))
        assert unknown_variables(dict.fromkeys(names)) == [], path
    assert called >= 10


def test_shellcheck_finds_nothing() -> None:
    command = [deploy_tools.shellcheck(), "--severity=style", *map(str, _SCRIPTS)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (0, "")


def test_hadolint_finds_nothing_in_the_box() -> None:
    file = _EXAMPLES / "box" / "Containerfile"
    done = subprocess.run([deploy_tools.hadolint(), str(file)], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "")
    allowed = {
        line[1:]
        for line in file.with_suffix(".dockerignore").read_text().splitlines()
        if line.startswith("!")
    }
    (stage,) = containerfile.read(file)[1]
    for step in stage.steps:
        if step.name == "COPY":
            for source in step.words[:-1]:
                assert (_ROOT / source).exists(), source
                assert source.rstrip("/") in allowed, source


@pytest.mark.parametrize(
    ("given", "name"),
    [
        ({"RUNPOD_POD_ID": "a1b2"}, "runpod-a1b2"),
        ({"SALAD_MACHINE_ID": "7f00-1"}, "salad-7f00-1"),
        ({"TRUNKLINE_AGENT_NAME": "mine"}, "mine"),
        ({}, None),
    ],
    ids=["RunPod", "Salad", "a name of its own", "elsewhere"],
)
def test_a_box_says_which_instance_it_is(
    given: dict[str, str], name: str | None, clean: dict[str, str], tmp_path: Path
) -> None:
    state = {} if "TRUNKLINE_AGENT_NAME" in given else {"TRUNKLINE_AGENT_STATE": str(tmp_path / "state")}
    if not state:
        state = {"TRUNKLINE_AGENT_STATE": str(tmp_path / "mine")}
    done = _run("box/start", {**clean, **given, **state, "ENGINE_FILE": "/etc/e.toml"})
    assert done.returncode == 0, done.stderr
    environment, arguments = _started(tmp_path)
    assert arguments == ["agent", "--config", "/etc/e.toml", "--log-format", "json"]
    assert environment["TRUNKLINE_AGENT_NAME"] == name or (
        name is None and environment["TRUNKLINE_AGENT_NAME"].startswith("box-")
    )
    assert Path(environment["TRUNKLINE_AGENT_STATE"]).stat().st_mode & 0o777 == 0o700


def test_scripts_say_what_is_missing(clean: dict[str, str]) -> None:
    del clean["TRUNKLINE_AGENT_GATEWAY"]
    for script in ("box/start", "slurm.sbatch"):
        done = _run(script, {**clean, "SLURM_JOB_ID": "7"})
        assert done.returncode != 0
        assert "TRUNKLINE_AGENT_GATEWAY" in done.stderr


def test_a_job_of_slurm_is_the_agent_which_gets_the_signal(clean: dict[str, str], tmp_path: Path) -> None:
    """Slurm signals the batch shell (``--signal=B:TERM@…``), and that is the agent by then."""
    join = tmp_path / ".config" / "trunkline" / "join"
    join.parent.mkdir(parents=True)
    join.write_text("tlj_secret\n")
    job = {"SLURM_JOB_ID": "99", "SLURM_ARRAY_JOB_ID": "42", "SLURM_ARRAY_TASK_ID": "3", "HOLD": "1"}
    trunkline = {"TRUNKLINE": str(tmp_path / "bin" / "trunkline")}
    process = subprocess.Popen(["bash", str(_EXAMPLES / "slurm.sbatch")], env={**clean, **job, **trunkline})
    until("the agent runs", (tmp_path / "runs").exists)
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 0
    assert (tmp_path / "drained").exists()
    environment, arguments = _started(tmp_path)
    assert arguments == ["agent", "--config", f"{tmp_path}/vllm.toml"]
    assert environment["TRUNKLINE_AGENT_NAME"] == "slurm-42-3"
    assert environment["TRUNKLINE_AGENT_STATE"].endswith("/slurm-42-3")
    assert environment["TRUNKLINE_AGENT_JOIN"] == "tlj_secret"


def test_slurms_directives_leave_the_agent_time_to_drain() -> None:
    text = (_EXAMPLES / "slurm.sbatch").read_text()
    directives = dict(re.findall(r"^#SBATCH --([a-z-]+)=?(.*)$", text, re.MULTILINE))
    assert {"job-name", "gres", "time", "signal", "requeue", "output"} <= set(directives)
    warned = re.fullmatch(r"B:TERM@(\d+)", directives["signal"])
    assert warned is not None
    for file in _ENGINES:
        (drain,) = re.findall(r"^drain_s = (\d+)", file.read_text(), re.MULTILINE)
        assert int(drain) + 30 < int(warned[1]) or file.stem == "comfyui"


def test_skypilots_task_has_what_its_specification_knows() -> None:
    task = yaml.safe_load(_SKYPILOT.read_text())
    assert set(task) <= {
        "name",
        "workdir",
        "num_nodes",
        "resources",
        "envs",
        "secrets",
        "file_mounts",
        "setup",
        "run",
    }
    assert set(task["resources"]) <= {
        "infra",
        "accelerators",
        "cpus",
        "memory",
        "use_spot",
        "disk_size",
        "any_of",
    }
    assert task["envs"] == {"TRUNKLINE_AGENT_GATEWAY": None}, "null: it has to be given"
    assert task["secrets"] == {"TRUNKLINE_AGENT_JOIN": None}
    for part in ("setup", "run"):
        done = subprocess.run(["bash", "-n", "-c", task[part]], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
    (config,) = re.findall(r"--config (\S+)", task["run"])
    assert (_ROOT / config).is_file()
