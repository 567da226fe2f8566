"""The container files and ``compose.yaml``: linted, valid, and of what the programs know.

``tests/integration/test_container_steps.py`` carries the container files out.
"""

import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped, unused-ignore]

from tests.support import containerfile, deploy_tools
from tests.support.deployed_settings import unknown_variables, wrong_words
from tests.support.manifests import errors
from tests.support.promtool import promtool

_ROOT = Path(__file__).parents[2]
_DEPLOY = _ROOT / "deploy"
_FILES = ("Containerfile.gateway", "Containerfile.agent")
_COMPOSE: dict[str, Any] = yaml.safe_load((_DEPLOY / "compose.yaml").read_text())
_SERVICES: dict[str, dict[str, Any]] = _COMPOSE["services"]
_OWN = ("gateway", "setup", "agent")


@pytest.mark.parametrize("file", _FILES)
def test_hadolint_finds_nothing(file: str) -> None:
    done = subprocess.run([deploy_tools.hadolint(), str(_DEPLOY / file)], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "")


@pytest.mark.parametrize("file", _FILES)
def test_an_image_runs_as_nobody_special_and_says_whether_it_is_well(file: str) -> None:
    _, stages = containerfile.read(_DEPLOY / file)
    image = stages[-1]
    names = [step.name for step in image.steps]
    assert len(stages) > 1
    assert {step.name for step in stages[0].steps} & {"USER", "ENTRYPOINT"} == set(), "built in another stage"
    (user,) = (step.text for step in image.steps if step.name == "USER")
    assert re.fullmatch(r"[1-9]\d+:[1-9]\d+", user)
    assert "RUN" not in names[names.index("USER") :]
    assert {"VOLUME", "HEALTHCHECK", "ENTRYPOINT", "CMD"} <= set(names)
    assert not any("gcc" in step.text for step in image.steps)
    assert unknown_variables(image.environment()) == []
    entry, words = image.last("ENTRYPOINT"), image.last("CMD")
    assert entry is not None
    assert words is not None
    assert entry.words == ["trunkline"]
    assert wrong_words(words.words) == []


@pytest.mark.parametrize("file", _FILES)
def test_everything_that_an_image_installs_is_pinned(file: str) -> None:
    _, stages = containerfile.read(_DEPLOY / file)
    installs = [step.text for stage in stages for step in stage.steps if "pip install" in step.text]
    assert installs
    assert all("-c deploy/constraints.txt" in text for text in installs)


def test_the_context_has_what_container_files_copy() -> None:
    for file in _FILES:
        lines = (_DEPLOY / f"{file}.dockerignore").read_text().splitlines()
        allowed = {line[1:] for line in lines if line.startswith("!")}
        for stage in containerfile.read(_DEPLOY / file)[1]:
            for step in stage.steps:
                if step.name == "COPY" and not step.text.startswith("--from="):
                    for source in step.words[:-1]:
                        assert (_ROOT / source).exists(), source
                        assert source in allowed


def test_compose_is_valid_by_the_schema_of_its_specification() -> None:
    assert errors(_COMPOSE, deploy_tools.compose_schema()) == []


def test_the_schema_would_find_a_mistake() -> None:
    broken = {**_COMPOSE, "services": {**_SERVICES, "gateway": {**_SERVICES["gateway"], "prots": ["1:1"]}}}
    assert errors(broken, deploy_tools.compose_schema()) != []


def test_compose_names_only_what_there_is() -> None:
    volumes, configs = set(_COMPOSE["volumes"]), set(_COMPOSE["configs"])
    for name, service in _SERVICES.items():
        assert set(service.get("depends_on", ())) <= set(_SERVICES), name
        for volume in service.get("volumes", ()):
            source = volume.partition(":")[0]
            assert source in volumes or (_DEPLOY / source).is_file(), source
        assert {each["source"] for each in service.get("configs", ())} <= configs
        if "build" in service:
            assert (_DEPLOY / service["build"]["context"] / service["build"]["dockerfile"]).is_file()
    assert (
        volumes == {v.partition(":")[0] for s in _SERVICES.values() for v in s.get("volumes", ())} & volumes
    )


@pytest.mark.parametrize("name", _OWN)
def test_compose_sets_and_calls_what_the_programs_know(name: str) -> None:
    service = _SERVICES[name]
    assert unknown_variables(service["environment"]) == []
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    script = " ".join(service.get("command", []))
    calls = re.findall(r"trunkline ((?:token|key|agent)[^|>\n]*)", script)
    assert len(calls) == {"gateway": 0, "setup": 2, "agent": 1}[name]
    for call in calls:
        assert wrong_words(call.split()) == []
    if script:
        done = subprocess.run(["sh", "-n", "-c", script.replace("$$", "$")], capture_output=True)
        assert done.returncode == 0


def _set_up(folder: Path, program: str) -> int:
    """The exit code of what compose's setup does in ``folder``, with ``program`` as trunkline."""
    (script,) = _SERVICES["setup"]["command"]
    stub = folder / "bin" / "trunkline"
    stub.parent.mkdir(exist_ok=True)
    stub.write_text(f"#!/bin/sh\n{program}\n")
    stub.chmod(0o755)
    line = script.replace("$$", "$").replace("/run/trunkline", str(folder))
    path = {**os.environ, "PATH": f"{stub.parent}:{os.environ['PATH']}"}
    return subprocess.run([*_SERVICES["setup"]["entrypoint"], line], env=path, timeout=60).returncode


def test_the_setup_keeps_what_it_makes_and_fails_where_nothing_is_made(tmp_path: Path) -> None:
    assert _set_up(tmp_path, "exit 1") != 0
    assert not (tmp_path / "join").exists(), "or the agent would begin with an empty token"
    assert _set_up(tmp_path, 'echo words; echo "made-$1"') == 0
    assert _set_up(tmp_path, "exit 1") == 0, "all is there"
    assert (tmp_path / "join").read_text() == "made-token\n"
    assert (tmp_path / "prometheus.key").read_text() == "made-key\n"


def test_only_loopback_is_published() -> None:
    ports = [port for service in _SERVICES.values() for port in service.get("ports", ())]
    assert "127.0.0.1:8700:8700" in ports
    assert all(port.startswith("127.0.0.1:") for port in ports)


def test_prometheus_takes_what_compose_writes_for_it(tmp_path: Path) -> None:
    settings = _COMPOSE["configs"]["prometheus"]["content"]
    key = tmp_path / "key"
    key.write_text("sk-tl-x")
    (tmp_path / "prometheus.yml").write_text(settings.replace("/run/trunkline/prometheus.key", str(key)))
    (tmp_path / "prometheus-rules.yml").write_text((_DEPLOY / "observe/prometheus-rules.yml").read_text())
    promtool("check", "config", str(tmp_path / "prometheus.yml"))
