import asyncio
import sys

import pytest

from shared.process.event_loop import SWITCH_S, event_loop_factory, loop_waits_briefly


def test_it_is_uvloops_where_there_is_one() -> None:
    uvloop = pytest.importorskip("uvloop")
    with asyncio.Runner(loop_factory=event_loop_factory()) as runner:
        assert isinstance(runner.get_loop(), uvloop.Loop)


def test_it_is_asyncios_where_there_is_no_uvloop(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "uvloop", None)
    assert event_loop_factory() is asyncio.new_event_loop


def test_other_threads_leave_the_interpreter_to_the_loop_soon_while_it_runs() -> None:
    before_s = sys.getswitchinterval()
    with loop_waits_briefly():
        assert sys.getswitchinterval() == pytest.approx(SWITCH_S)
    assert sys.getswitchinterval() == before_s
