"""Children are waited for, watched and stopped."""

from pathlib import Path

import pytest

from gateway.tools.quickstart import processes
from gateway.tools.quickstart.processes import Children, ProcessEnded

_ENGINE = ("tests.support.scripted_engine", "--port", "0")


def test_leaving_the_context_stops_what_was_started(tmp_path: Path) -> None:
    with Children(tmp_path) as children:
        child = children.start("engine", *_ENGINE)
        children.wait_until(lambda: "listening" in child.tail(), "the engine listens", 30)
        children.check()
    assert not Path(f"/proc/{child.pid}").exists()


def test_a_variable_can_be_set_and_taken_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KEPT", "1")
    monkeypatch.setenv("TAKEN", "1")
    told = "import os; print([name for name in ('KEPT', 'TAKEN', 'SET') if name in os.environ])"
    with Children(tmp_path) as children:
        given = {"TAKEN": None, "SET": "1"}
        child = children.start("told", "timeit", "-n", "1", "-r", "1", told, environment=given)
        assert child.ended(30) == 0
        assert "['KEPT', 'SET']" in child.tail()


def test_a_child_that_ends_by_itself_is_reported_with_its_last_words(tmp_path: Path) -> None:
    with Children(tmp_path) as children:
        children.start("engine", *_ENGINE, "--nonsense")
        with pytest.raises(ProcessEnded, match=r"(?s)exit code 2.*--nonsense"):
            children.wait_until(lambda: False, "never", 30)


def test_waiting_in_vain_ends_with_what_the_children_said(tmp_path: Path) -> None:
    with Children(tmp_path) as children:
        children.start("engine", *_ENGINE)
        with pytest.raises(ProcessEnded, match="never: not after 0 s"):
            children.wait_until(lambda: False, "never", 0)


def test_a_long_wait_says_now_and_then_how_it_goes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "TELL_S", 0.0)
    told: list[int] = []
    with Children(tmp_path) as children:
        children.wait_until(lambda: len(told) == 3, "three lines", 30, lambda: told.append(1))
    assert len(told) == 3
