"""A wait that ends when it is woken, or in time."""

import asyncio
import time

import pytest

from shared.process.timers import wait_to_wake


async def test_it_ends_when_it_is_woken_and_can_be_woken_again() -> None:
    wake = asyncio.Event()
    for _ in range(2):
        waiting = asyncio.ensure_future(wait_to_wake(wake, 60.0))
        await asyncio.sleep(0)
        assert not waiting.done()
        wake.set()
        await waiting
        assert not wake.is_set()


async def test_it_ends_at_once_when_it_was_woken_before() -> None:
    wake = asyncio.Event()
    wake.set()
    await wait_to_wake(wake, 60.0)
    assert not wake.is_set()


async def test_it_ends_in_time_when_nobody_wakes_it() -> None:
    wake = asyncio.Event()
    began_s = time.monotonic()
    await wait_to_wake(wake, 0.02)
    assert time.monotonic() - began_s >= 0.019
    assert not wake.is_set()


async def test_one_that_is_cancelled_wakes_nobody_afterwards() -> None:
    wake = asyncio.Event()
    waiting = asyncio.ensure_future(wait_to_wake(wake, 0.01))
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    await asyncio.sleep(0.02)
    assert not wake.is_set()
