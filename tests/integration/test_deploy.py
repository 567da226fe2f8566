"""The files of ``deploy/`` are what the programs take."""

import os
import shutil
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

from agent.config.sources import load
from tests.support.processes import command

_DEPLOY = Path(__file__).parents[2] / "deploy"


def test_the_gateways_example_settings_are_valid() -> None:
    line = command("gateway", "config", "--config", str(_DEPLOY / "gateway.toml"))
    done = subprocess.run(line, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


def test_the_agents_example_settings_are_valid() -> None:
    settings = load({}, _DEPLOY / "agent.toml")
    assert [engine.url for engine in settings.engines] == ["http://127.0.0.1:8000"]


def test_the_scripts_are_bash_and_say_what_they_do() -> None:
    for script in ("deploy/quickstart", "tests/run", ".ci/run"):
        path = _DEPLOY.parent / script
        assert os.access(path, os.X_OK)
        assert subprocess.run(["bash", "-n", str(path)], capture_output=True).returncode == 0
        assert path.read_text().startswith("#!/usr/bin/env bash\n# ")


def test_tests_run_knows_its_suites_from_any_directory(tmp_path: Path) -> None:
    run = str(_DEPLOY.parent / "tests" / "run")
    for arguments, code, said in (
        (["fuzz", "--help"], 0, "--seed"),
        (["nonsense"], 2, "no suite"),
        (["--help"], 0, "tests/run"),
    ):
        done = subprocess.run([run, *arguments], cwd=tmp_path, capture_output=True, text=True, timeout=600)
        assert (done.returncode, said in done.stdout + done.stderr) == (code, True), done.stderr


def test_every_pinned_package_is_installed_in_that_version() -> None:
    lines = (_DEPLOY / "constraints.txt").read_text().splitlines()
    pins = dict(line.split("==") for line in lines if line and not line.startswith("#"))
    wrong = {name: version(name) for name, pin in pins.items() if version(name).partition("+")[0] != pin}
    assert not wrong


def _found(folder: Path, python: str = "") -> subprocess.CompletedProcess[str]:
    """What ``find_python`` of deploy/environment.sh says where only that folder is on the PATH."""
    bash = shutil.which("bash")
    assert bash is not None
    return subprocess.run(
        [bash, "-c", "source deploy/environment.sh; find_python"],
        cwd=_DEPLOY.parent,
        env={"PATH": str(folder), "PYTHON": python},
        capture_output=True,
        text=True,
        timeout=60,
    )


def _interpreter(path: Path, says: str) -> Path:
    """A program that answers as an interpreter does: grade and path, or nothing where it is too old."""
    path.write_text(f"#!/bin/sh\n{says}\n")
    path.chmod(0o755)
    return path


@pytest.mark.parametrize(
    ("installed", "best"),
    [
        ({"python3.11": "echo 2 /eleven", "python3.12": "echo 3 /twelve"}, "/twelve"),
        ({"python3.11": "echo 3 /eleven", "python3.12": "echo 3 /twelve"}, "/eleven"),
        ({"python3.11": "echo 1 /optimised", "python3": "echo 2 /with headers"}, "/with headers"),
        ({"python3.11": "exit 1", "python3.12": "", "python3.13": "echo 0 /only"}, "/only"),
    ],
)
def test_the_interpreter_that_suits_best_is_taken(
    installed: dict[str, str], best: str, tmp_path: Path
) -> None:
    for name, says in installed.items():
        _interpreter(tmp_path / name, says)
    assert _found(tmp_path).stdout == f"{best}\n"


def test_the_interpreter_that_is_named_is_taken_where_it_can_be(tmp_path: Path) -> None:
    folder = tmp_path / "path"
    folder.mkdir()
    _interpreter(folder / "python3.11", "echo 3 /best")
    worse = _interpreter(tmp_path / "worse", "echo 0 /worse")
    older = _interpreter(tmp_path / "older", "")
    assert _found(folder, str(worse)).stdout == "/worse\n"
    instead = _found(folder, str(older))
    assert instead.stdout == "/best\n"
    assert f"{older}, which PYTHON names, is not Python 3.11 or newer" in instead.stderr
    assert _found(folder, sys.executable).stdout == f"{sys.executable}\n"


def test_without_an_interpreter_it_is_said_what_to_install(tmp_path: Path) -> None:
    found = _found(tmp_path)
    assert (found.returncode, found.stdout) == (1, "")
    assert "Trunkline needs Python 3.11 or newer" in found.stderr


def _installed(folder: Path, configuration: str, uv_fails: bool) -> tuple[list[str], str]:
    """The commands that ``pip_install`` of deploy/environment.sh calls, and the log it leaves."""
    bash = shutil.which("bash")
    assert bash is not None
    (folder / ".venv" / "bin").mkdir(parents=True)
    (folder / "deploy").mkdir()
    shutil.copy(_DEPLOY / "uv_options.py", folder / "deploy")
    calls = folder / "calls"
    _interpreter(
        folder / ".venv/bin/python",
        f'case "$*" in deploy/*) exec {sys.executable} "$@" ;; *"config list") echo "{configuration}" ;; '
        f'*) echo "$*" >>{calls} ;; esac',
    )
    _interpreter(folder / ".venv/bin/uv", f'echo "uv $*" >>{calls}; exit {int(uv_fails)}')
    script = f"source {_DEPLOY}/environment.sh; cd {folder}; set -e; pip_install -e .[test]"
    environment = {"PATH": os.environ["PATH"]}
    subprocess.run([bash, "-c", script], env=environment, capture_output=True, timeout=60, check=True)
    return calls.read_text().splitlines(), (folder / ".venv/install.log").read_text()


def test_uv_installs_from_where_pip_would(tmp_path: Path) -> None:
    calls, _ = _installed(tmp_path, "global.index-url='https://packages.example'", False)
    first, second = calls
    assert "pip install" in first
    assert "uv==" in first
    assert second.startswith("uv pip install ")
    assert second.endswith(" -c deploy/constraints.txt --default-index=https://packages.example -e .[test]")


@pytest.mark.parametrize(("configuration", "uv_fails"), [("global.trusted-host='here'", False), ("", True)])
def test_pip_installs_where_uv_cannot(configuration: str, uv_fails: bool, tmp_path: Path) -> None:
    calls, log = _installed(tmp_path, configuration, uv_fails)
    assert len(calls) == (3 if uv_fails else 1)
    assert calls[-1].startswith("-m pip install ")
    assert calls[-1].endswith(" -c deploy/constraints.txt -e .[test]")
    assert "so pip does" in log
