import asyncio

import pytest

from gateway.domain.errors import ShuttingDown
from gateway.runtime.lifecycle import Lifecycle, LifecyclePhase


async def test_requests_are_taken_until_the_gateway_drains() -> None:
    lifecycle = Lifecycle()
    assert lifecycle.phase is LifecyclePhase.STARTING
    lifecycle.serve()
    lifecycle.check()
    lifecycle.drain()
    with pytest.raises(ShuttingDown) as caught:
        lifecycle.check()
    assert caught.value.retry_after_s


async def test_a_drain_is_not_undone() -> None:
    lifecycle = Lifecycle()
    lifecycle.drain()
    lifecycle.serve()
    assert lifecycle.draining


async def test_idle_is_when_the_last_request_has_left() -> None:
    lifecycle = Lifecycle()
    await lifecycle.wait_idle()
    lifecycle.enter()
    lifecycle.enter()
    waiting = asyncio.create_task(lifecycle.wait_idle())
    lifecycle.leave()
    await asyncio.sleep(0)
    assert not waiting.done()
    lifecycle.leave()
    await waiting
    assert lifecycle.in_flight == 0
