import asyncio
import contextlib
import os
import sys
import time
from pathlib import Path

import pytest

from tests.support.run_queue import EVERY_S, RunQueue

pytestmark = pytest.mark.skipif(
    not Path("/proc/self/schedstat").exists(), reason="this kernel does not count how long threads wait"
)
BURN = "import time\nuntil = time.monotonic() + 1.5\nwhile time.monotonic() < until: pass"


async def watched(*programs: str) -> float:
    """How slow it was while all ran on one processor."""
    queue = RunQueue(time.monotonic)
    watching = asyncio.create_task(queue.watch())
    began_s = time.monotonic()
    processors = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(processors)})
    try:
        children = [await asyncio.create_subprocess_exec(sys.executable, "-c", each) for each in programs]
    finally:
        os.sched_setaffinity(0, processors)
    for child in children:
        await child.wait()
    ended_s = time.monotonic()
    await asyncio.sleep(EVERY_S)
    watching.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await watching
    return queue.slowness(began_s, ended_s)


async def test_four_on_one_processor_take_some_times_as_long() -> None:
    assert await watched(*[BURN] * 4) > 2.0


async def test_nothing_is_slow_of_which_nothing_is_known() -> None:
    assert RunQueue(time.monotonic).slowness(0.0, time.monotonic()) == 1.0
