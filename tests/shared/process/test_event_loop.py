import asyncio
import sys

import pytest

from shared.process.event_loop import event_loop_factory


def test_it_is_uvloops_where_there_is_one() -> None:
    uvloop = pytest.importorskip("uvloop")
    with asyncio.Runner(loop_factory=event_loop_factory()) as runner:
        assert isinstance(runner.get_loop(), uvloop.Loop)


def test_it_is_asyncios_where_there_is_no_uvloop(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "uvloop", None)
    assert event_loop_factory() is asyncio.new_event_loop
