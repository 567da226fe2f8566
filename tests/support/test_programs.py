import os
import shutil
import subprocess

import pytest

from tests.support import programs


@pytest.fixture
def nothing_installed(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """No program is found; the commands that were run, all of which fail."""
    ran: list[list[str]] = []

    def run(command: list[str], **how: object) -> object:
        ran.append(command)
        return type("Failed", (), {"returncode": 100, "stderr": "E: a line\nE: no such package"})

    monkeypatch.setattr(programs, "find", lambda name: None)
    monkeypatch.setattr(shutil, "which", lambda name: "/usr/bin/apt-get")
    monkeypatch.setattr(subprocess, "run", run)
    return ran


def test_a_program_that_is_there_is_not_installed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(programs, "find", lambda name: f"/usr/bin/{name}")
    assert programs.install({"nginx": "nginx-light"}) is None


def test_who_may_not_install_is_told_the_command(
    nothing_installed: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    reason = programs.install({"nginx": "nginx-light", "promtool": "prometheus"})
    assert reason is not None
    assert reason.endswith("apt-get install nginx-light prometheus")
    assert nothing_installed == []


def test_a_package_that_is_not_to_be_had_is_tried_with_new_lists_and_then_told(
    nothing_installed: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    reason = programs.install({"nginx": "nginx-light"})
    assert reason is not None
    assert "no such package" in reason
    assert [command[1] for command in nothing_installed if command[1] == "update"] == ["update"]
    assert len(nothing_installed) == 3


def test_one_that_cannot_be_had_keeps_the_others_from_nobody(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[dict[str, str]] = []

    def install(packages: dict[str, str]) -> str | None:
        asked.append(dict(packages))
        return "nginx is not to be had" if "nginx" in packages else None

    monkeypatch.setattr(programs, "install", install)
    programs.main()
    assert asked == [programs.WHOLE_RUN, *({name: programs.WHOLE_RUN[name]} for name in programs.WHOLE_RUN)]
    assert capsys.readouterr().err.count("nginx is not to be had") == 1
