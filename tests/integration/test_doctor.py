"""``trunkline doctor`` at set-ups that are broken, each in one way: it finds that, and says what mends it."""

import json
import os
import socket
import time
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from gateway.domain.scopes import AdminRole
from gateway.storage import Store
from shared.process.cli import build
from tests.integration.conftest import MODEL, Site
from tests.integration.doctor_setups import KEY, SETUPS, Place
from tests.support.stand_in_gateway import StandIn, certificate_for, stand_in


def run_doctor(*arguments: str) -> tuple[int, dict[str, Any]]:
    """The exit code, and what it prints as JSON."""
    result = CliRunner().invoke(build(), ["doctor", "--json", *arguments])
    assert result.exit_code in (0, 1), result.output
    return result.exit_code, json.loads(result.stdout)


@pytest.fixture(scope="module")
def viewer(site: Site) -> str:
    """A key that may see."""
    with Store.open(site.gateway.state) as store:
        return store.keys.create("doctor", "tests", time.time(), role=AdminRole.VIEWER)


@pytest.fixture(autouse=True)
def _own_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """None of what a developer has set counts, and nothing is looked for in a home directory."""
    for name in list(os.environ):
        if name.startswith("TRUNKLINE_") or name.lower().endswith("_proxy"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "home"))


@pytest.mark.parametrize("words", SETUPS)
def test_a_broken_set_up_is_found_and_what_mends_it_is_said(
    words: str, request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make, expected, remedy = SETUPS[words]
    with make(Place(request, tmp_path, monkeypatch)) as arguments:
        code, found = run_doctor(*arguments)
    checks = {each["id"]: each for each in found["checks"]}
    assert {name: checks[name]["state"] for name in expected} == expected, json.dumps(found, indent=1)
    wrong = [each for each in found["checks"] if each["state"] in ("failed", "warning")]
    assert remedy in " ".join(each["remedy"] for each in wrong)
    assert code == any(each["state"] == "failed" for each in wrong)
    assert {each["id"] for each in wrong if each["state"] == "failed"} == {
        name for name, state in expected.items() if state == "failed"
    }, "nothing else is wrong"


def test_at_a_set_up_that_works_nothing_fails(site: Site, viewer: str) -> None:
    idle = ("--idle", "0.5", "--model", MODEL)
    state = site.house.directory / "agent-state"
    asked = ("--url", site.gateway.url, "--key", viewer, "--state", str(site.gateway.state))
    code, found = run_doctor(*asked, *idle, "--agent-state", str(state), "--engine", site.engine.url)
    states = {each["id"]: each["state"] for each in found["checks"]}
    assert code == 0, json.dumps(found, indent=1)
    assert {name for name, state in states.items() if state == "failed"} == set()
    measured = (
        "real-request",
        "sse-buffering",
        "idle-cut",
        "body-limit",
        "websocket-upgrade",
        "engine-generates",
    )
    assert {name: states[name] for name in measured} == dict.fromkeys(measured, "ok")


def test_of_engines_that_only_the_agents_command_line_names_the_gateway_is_asked(
    site: Site, viewer: str, tmp_path: Path
) -> None:
    settings = tmp_path / "agent.toml"
    settings.write_text("find_engines = false\n")
    state = site.house.directory / "agent-state"
    host = ["--on", "agent", "--agent-config", str(settings), "--agent-state", str(state)]
    host += ["--only", "engine-reachable"]
    code, found = run_doctor(*host, "--url", site.gateway.url, "--key", viewer)
    (check,) = (each for each in found["checks"] if each["id"] == "engine-reachable")
    assert (code, check["state"]) == (0, "skipped"), json.dumps(found, indent=1)
    assert f"serves {MODEL}" in check["words"]
    code, found = run_doctor(*host)
    assert (code, found["checks"][-1]["words"]) == (1, "No engine is here.")


def test_nothing_is_changed(site: Site, viewer: str, tmp_path: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in (tmp_path, site.house.directory / "agent-state")}
    run_doctor("--state", str(tmp_path / "none"), "--agent-state", str(site.house.directory / "agent-state"))
    assert {path: path.stat().st_mtime_ns for path in before} == before
    assert list(tmp_path.iterdir()) == []


def test_every_check_is_in_the_list_of_the_documents() -> None:
    page = (Path(__file__).parents[2] / "docs" / "doctor.md").read_text()
    listed = {
        line.split("`")[1]
        for line in page.partition("## Broken set-ups")[0].splitlines()
        if line.startswith("| `")
    }
    everything = ("--on", "gateway", "--on", "agent", "--on", "way", "--url", "http://127.0.0.1:1")
    _, found = run_doctor(*everything)
    assert {each["id"] for each in found["checks"]} == listed


def test_every_broken_set_up_is_in_the_table_of_the_documents() -> None:
    page = (Path(__file__).parents[2] / "docs" / "doctor.md").read_text()
    table = page.partition("## Broken set-ups")[2]
    rows = dict(line.strip("| ").split(" | ")[:2] for line in table.splitlines() if line.startswith("| "))
    wrong = {
        words: ", ".join(f"`{name}`" for name, state in states.items() if state in ("failed", "warning"))
        for words, (_, states, _) in SETUPS.items()
    }
    assert {words: rows.get(words) for words in wrong} == wrong


def test_a_key_is_not_sent_in_the_clear() -> None:
    result = CliRunner().invoke(build(), ["doctor", "--url", "http://192.0.2.1", "--key", KEY])
    assert result.exit_code == 2


@pytest.mark.parametrize("key", [f"{KEY}\n", f"{KEY}\u20ac"])
def test_a_key_that_no_header_field_can_hold_is_wrong_usage(key: str) -> None:
    result = CliRunner().invoke(build(), ["doctor", "--url", "https://192.0.2.1", "--key", key])
    assert result.exit_code == 2
    assert "was it copied right?" in " ".join(result.output.split()).replace("│ ", "")
    assert KEY not in result.output


def test_the_agents_certificates_are_trusted_where_its_gateway_is_looked_at(tmp_path: Path) -> None:
    tls = certificate_for(tmp_path)
    file = tmp_path / "agent.toml"
    with stand_in(StandIn(), tls) as there:
        file.write_text(f'gateway = "https://localhost:{there.port}"\nca_file = "{tls[0]}"\n')
        asked = ("--agent-config", str(file), "--only", "gateway-answers")
        assert run_doctor(*asked)[0] == 0
        (tmp_path / "other").mkdir()
        other = certificate_for(tmp_path / "other")[0]
        assert run_doctor(*asked, "--ca-file", str(other))[0] == 1, "an option counts more"


def test_a_port_at_which_nobody_accepts_does_not_hold_it_up() -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen(0)
        host, port = silent.getsockname()
        began_s = time.monotonic()
        code, _ = run_doctor("--on", "way", "--url", f"http://{host}:{port}", "--only", "gateway-answers")
    assert code == 1
    assert time.monotonic() - began_s < 120.0
