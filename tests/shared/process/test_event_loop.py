import asyncio
import sys
import time

import pytest

from shared.process.event_loop import SWITCH_S, event_loop_factory, loop_waits_briefly, wait_to_wake


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


async def test_a_wait_ends_when_it_is_woken_and_can_be_woken_again() -> None:
    wake = asyncio.Event()
    for _ in range(2):
        waiting = asyncio.ensure_future(wait_to_wake(wake, 60.0))
        await asyncio.sleep(0)
        assert not waiting.done()
        wake.set()
        await waiting
        assert not wake.is_set()


async def test_a_wait_ends_at_once_when_it_was_woken_before() -> None:
    wake = asyncio.Event()
    wake.set()
    await wait_to_wake(wake, 60.0)
    assert not wake.is_set()


async def test_a_wait_ends_in_time_when_nobody_wakes_it() -> None:
    wake = asyncio.Event()
    began_s = time.monotonic()
    await wait_to_wake(wake, 0.02)
    assert time.monotonic() - began_s >= 0.019
    assert not wake.is_set()


async def test_a_wait_that_is_cancelled_wakes_nobody_afterwards() -> None:
    wake = asyncio.Event()
    waiting = asyncio.ensure_future(wait_to_wake(wake, 0.01))
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    await asyncio.sleep(0.02)
    assert not wake.is_set()
