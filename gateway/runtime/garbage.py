"""When garbage in reference cycles is collected, so that a fleet's objects do not hold the event loop.

The interpreter's full collections look at all objects there are, again and again while agents join, and each
takes longer than the one before. So do those of young objects while requests run: what a request makes and
leaves is gone without a collection, and each one looks at all that lives. Here the interpreter collects young
objects only, and seldom, unless a moment comes at which nobody waits for the loop. What becomes garbage later
waits for a complete collection, which is made when the process has grown, if possible at such a moment too.
"""

import gc
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import structlog

NEVER = 2**31 - 1

THRESHOLDS = (100_000, NEVER, NEVER)
"""So many more objects made than gone, and the youngest generation is collected; the others never
(``gc.set_threshold``). Requests that come as fast as others end do not add up to it. The interpreter may look
at many more objects than these then: some that went were old."""

QUIET_OBJECTS = 10_000
"""At a quiet moment so many are enough."""

GROWN_BYTES = 256 * 1024 * 1024
"""At a quiet moment a complete collection is made once the process has doubled since the last one and has
grown by this much."""

FORCED_FACTOR = 2
"""At any moment once it has grown by so many times as much."""

SHORT_BYTES = 16 * 1024 * 1024
"""When the machine is short of memory, so much growth is enough."""

APART_S = 60.0
"""Complete collections because the machine is short of memory are so far apart at least."""

QUIET_SHARE = 0.2
"""A moment is quiet when the loop's thread has used less of its time since the last look."""

_OBJECT_BYTES = 200
"""About what one object takes, where the system does not say how much memory the process has."""

_log = structlog.get_logger("gateway")


@contextmanager
def young_collections_only() -> Iterator[None]:
    """Inside, the interpreter makes no complete collection by itself; afterwards it is as before."""
    before = gc.get_threshold()
    gc.set_threshold(*THRESHOLDS)
    try:
        yield
    finally:
        gc.set_threshold(*before)


def is_quiet(requests: int, busy_share: float) -> bool:
    """Whether nobody waits for the loop, with so many requests in flight, when its thread has used this share
    of its time of late."""
    return not requests and busy_share < QUIET_SHARE


class CollectionPolicy:
    """Decides when a complete collection is due."""

    def __init__(self, now: float, resident_bytes: int) -> None:
        """``now`` is in seconds, of any clock that does not go back."""
        self._collected_s = now - APART_S
        self._left_bytes = resident_bytes

    def is_due(
        self, now: float, resident_bytes: int, *, requests: int, busy_share: float, memory_short: bool
    ) -> bool:
        """Whether to make one now, in a process of this size with so many requests in flight, whose event
        loop's thread has used this share of its time since the last look."""
        grown_bytes = resident_bytes - self._left_bytes
        if memory_short and now - self._collected_s >= APART_S:
            return grown_bytes >= SHORT_BYTES
        most = max(GROWN_BYTES, self._left_bytes)
        quiet = is_quiet(requests, busy_share)
        return grown_bytes >= (most if quiet else FORCED_FACTOR * most)

    def collected(self, now: float, resident_bytes: int) -> None:
        """One was made, which left the process so large."""
        self._collected_s, self._left_bytes = now, resident_bytes


def resident_bytes() -> int:
    """The memory of this process; where the system does not say, what garbage can have come to at most."""
    try:
        pages = int(Path("/proc/self/statm").read_text("ascii").split()[1])
    except (OSError, ValueError, IndexError):
        collections: int = gc.get_stats()[0]["collections"]
        return collections * THRESHOLDS[0] * _OBJECT_BYTES
    return pages * os.sysconf("SC_PAGE_SIZE")


class GarbageCollector:
    """Carries out what the policy says. Only from the event loop's thread."""

    def __init__(
        self,
        requests: Callable[[], int],
        memory_short: Callable[[], bool],
        resident: Callable[[], int] = resident_bytes,
        used: Callable[[], float] = time.thread_time,
    ) -> None:
        """``requests`` tells how many are in flight, ``resident`` the memory of this process in bytes,
        ``used`` the CPU time of this thread in seconds."""
        self._requests = requests
        self._memory_short = memory_short
        self._resident = resident
        self._used = used
        self._looked_s = time.monotonic()
        self._used_s = used()
        self._policy = CollectionPolicy(self._looked_s, resident())

    def look(self) -> bool:
        """Collect if it is due; whether a complete collection was. Call it about once a second."""
        now, used_s = time.monotonic(), self._used()
        busy_share = (used_s - self._used_s) / max(now - self._looked_s, 1e-9)
        self._looked_s, self._used_s = now, used_s
        requests, memory_short = self._requests(), self._memory_short()
        if not self._policy.is_due(
            now, self._resident(), requests=requests, busy_share=busy_share, memory_short=memory_short
        ):
            if is_quiet(requests, busy_share) and gc.get_count()[0] >= QUIET_OBJECTS:
                gc.collect(0)
            return False
        objects = gc.collect()
        self._policy.collected(now, self._resident())
        _log.debug("garbage_collected", objects=objects, cpu_s=round(self._used() - used_s, 3))
        return True
