"""Watches the machine (descriptors, memory, disks, garbage, the event loop) and limits the gateway when they
run short."""

import asyncio
import ctypes
import itertools
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

import structlog

from gateway.observability.metrics import Metrics
from gateway.runtime.config.settings import MachineTable
from gateway.runtime.descriptors import RESERVE, DescriptorBudget
from gateway.runtime.disks import DiskWatch
from gateway.runtime.garbage import GarbageCollector
from gateway.runtime.pressure import MemoryReader, Pressure
from shared.process.stand_stills import StandStills
from shared.process.startup import OPEN_FILES, raise_file_limit
from shared.process.watchdog import watched_loop

LOOK_S = 1.0
"""How often descriptors, memory and garbage are looked at."""

TRIM_LOOKS = 60
"""So many looks apart, memory that was freed is given back to the system: the C library keeps what a burst of
requests needed, in pieces, for ever."""

QUIET_S = 60.0
"""After a blocked loop was logged, further ones within this time are only counted."""

_log = structlog.get_logger("gateway")


class MachineGuard:
    """The guards of one gateway. Create it on the event loop that they guard."""

    def __init__(
        self,
        metrics: Metrics,
        settings: MachineTable,
        requests: Callable[[], int] = lambda: 0,
        written: Sequence[Path] = (),
    ) -> None:
        """``requests`` tells how many are in flight; ``written`` are directories that the gateway writes
        to."""
        loop = asyncio.get_running_loop()
        self._metrics = metrics
        self._settings = settings
        self.stills = StandStills(loop.time())
        self.descriptors = DescriptorBudget(loop, metrics)
        self.pressure = Pressure(metrics, settings.memory_share)
        self.disks = DiskWatch(metrics, written)
        self._garbage = GarbageCollector(requests, lambda: bool(self.pressure.level))
        loop.set_exception_handler(self.descriptors.loop_failed)

    async def watch(self, hold: Callable[[bool], Awaitable[None]]) -> None:
        """Runs until cancelled. ``hold`` gets, every time, whether no connection can be accepted at all."""
        with watched_loop(GatewayLoopReporter(self._metrics), self._settings.blocked_s, self.stills):
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self.disks.keep_looking())
                tasks.create_task(self._keep_looking(hold))

    async def _keep_looking(self, hold: Callable[[bool], Awaitable[None]]) -> None:
        read, give_back = MemoryReader(), trimmer()
        for look in itertools.count(1):
            await hold(self.descriptors.none_left)
            self.pressure.read(await asyncio.to_thread(read))
            self._garbage.look()
            if look % TRIM_LOOKS == 0:
                await asyncio.to_thread(give_back)
            await asyncio.sleep(LOOK_S)


class GatewayLoopReporter:
    """Says in the log that the loop is blocked, with the stack of its thread, and that it turns again; counts
    both."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._logged_s = float("-inf")
        self._logs_this = False
        self._unlogged = 0
        metrics.machine_trouble("loop", False)

    def loop_blocked(self, now: float, stack: Callable[[], list[str]]) -> None:
        self._metrics.machine_trouble("loop", True)
        self._logs_this = now - self._logged_s >= QUIET_S
        if not self._logs_this:
            self._unlogged += 1
            return
        _log.error("loop_blocked", stack=stack(), untold=self._unlogged)
        self._logged_s, self._unlogged = now, 0

    def loop_turns(self, now: float, lasted_s: float) -> None:
        self._metrics.loop_blocked(lasted_s)
        self._metrics.machine_trouble("loop", False)
        if self._logs_this:
            _log.warning("loop_turns", blocked_s=round(lasted_s, 1))

    def process_stood_still(self, now: float, lasted_s: float) -> None:
        self._metrics.loop_blocked(lasted_s)
        _log.warning("process_stood_still", for_s=round(lasted_s, 1))

    def looked(self, now: float) -> None:
        """Nothing is logged later than it happens."""


def trimmer() -> Callable[[], None]:
    """What gives freed memory back: glibc's ``malloc_trim``; elsewhere nothing. Takes milliseconds."""
    try:
        trim = ctypes.CDLL(None).malloc_trim
    except (OSError, AttributeError, TypeError):
        return lambda: None
    return lambda: trim(0)


_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
"""From glibc's malloc.h."""

KEPT_FREE_BYTES = 8 * 1024 * 1024
MAPPED_BYTES = 1024 * 1024
"""Blocks so long have a mapping of their own."""


def keep_freed_memory() -> None:
    """Have glibc keep up to ``KEPT_FREE_BYTES`` of freed memory at the end of the heap; elsewhere nothing.

    By default it keeps some hundred KiB. What each burst of requests gives back then, the next one asks for
    anew, page by page: four faults a request. :func:`trimmer` gives back all of it.
    """
    try:
        set_option = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError, TypeError):
        return
    set_option(_M_MMAP_THRESHOLD, MAPPED_BYTES)
    set_option(_M_TRIM_THRESHOLD, KEPT_FREE_BYTES)


def make_room(connections: int, agents: int) -> Callable[[], None]:
    """Raise the limit of open files to what so many clients and agents need. What is given back says so if
    that cannot be."""
    needed = connections + agents + RESERVE
    limit = raise_file_limit(max(needed, OPEN_FILES))
    if limit is None or limit >= needed:
        return lambda: None
    message = (
        f"The limit of open files is {limit}, which is less than {connections} connections and {agents} "
        f"agents need: raise it to {needed} (ulimit -n, or LimitNOFILE of the service), or lower "
        "http.connections and agents.max_agents."
    )
    return lambda: _log.warning(
        message, code="few_descriptors", limit=limit, connections=connections, agents=agents
    )
