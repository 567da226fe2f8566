"""What is repeated is done when it is its time or wanted; a database that fails is told once."""

import asyncio

from structlog.testing import capture_logs

from gateway.fleet.repetition import repeat_in
from gateway.storage.errors import StateError
from tests.gateway.fleet.agent_house import eventually


async def test_it_is_done_when_it_is_wanted_and_every_so_often() -> None:
    done, wake, over = 0, asyncio.Event(), False

    async def work() -> None:
        nonlocal done
        done += 1

    async with asyncio.TaskGroup() as tasks:
        repeat_in(tasks, lambda: over, work, 3600.0, wake)
        wake.set()
        await eventually(lambda: done == 1)
        wake.set()
        await eventually(lambda: done == 2)
        over = True
        wake.set()
    assert done == 2
    over = False
    async with asyncio.TaskGroup() as tasks:
        repeat_in(tasks, lambda: over, work, 0.001)
        await eventually(lambda: done >= 5)
        over = True


async def test_a_database_that_fails_is_logged_once_until_it_works_again() -> None:
    fails = iter([True, True, True, False, True])
    over = False

    async def _look_at_it() -> None:
        nonlocal over
        found = next(fails, None)
        over = found is None
        if found:
            raise StateError("locked")

    with capture_logs() as logged:
        async with asyncio.TaskGroup() as tasks:
            repeat_in(tasks, lambda: over, _look_at_it, 0.001)
    told = {"event": "state_failed", "doing": "look_at_it", "error": "locked", "log_level": "error"}
    assert logged == [told, told]
