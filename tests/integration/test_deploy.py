"""The files of ``deploy/`` are what the programs take."""

import os
import subprocess
from importlib.metadata import version
from pathlib import Path

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
        (["chaos", "--help"], 0, "--seed"),
        (["nonsense"], 2, "no suite"),
        (["--help"], 0, "tests/run"),
    ):
        done = subprocess.run([run, *arguments], cwd=tmp_path, capture_output=True, text=True, timeout=60)
        assert (done.returncode, said in done.stdout + done.stderr) == (code, True), done.stderr


def test_every_pinned_package_is_installed_in_that_version() -> None:
    lines = (_DEPLOY / "constraints.txt").read_text().splitlines()
    pins = dict(line.split("==") for line in lines if line and not line.startswith("#"))
    wrong = {name: version(name) for name, pin in pins.items() if version(name).partition("+")[0] != pin}
    assert not wrong
