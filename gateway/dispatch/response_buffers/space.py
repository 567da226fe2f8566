"""The file that takes what memory has no room for: who may have how much of it, and the threads that use it.

It is made when it is first needed, and closed, so that the disk has its space back, once nothing is in it.
If it cannot be used (no space, read-only, an error of the disk) it is left alone for a while, and engines
wait for their readers as if there were none.
"""

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Protocol, TypeVar

import structlog

from gateway.dispatch.response_buffers.fair_share import FairShareCounter
from gateway.dispatch.response_buffers.file import BLOCK_BYTES, PAYLOAD_BYTES, Extent, SpillFile

_Result = TypeVar("_Result")
_Done = Callable[[_Result | None, Exception | None], None]
"""Is told what some work gave, or what it raised."""

REST_S = 10.0
"""So long nothing is written after it could not be."""

THREADS = 2
"""One may read while the other writes."""

_log = structlog.get_logger(__name__)


class Worker(Protocol):
    """Runs what blocks away from the event loop."""

    def run(self, work: Callable[[], _Result], done: _Done[_Result], /) -> None:
        """``done`` is called on the event loop with what ``work`` gave or raised."""

    def close(self) -> None:
        """Nothing more is to be run."""


class Threads:
    """A worker with threads of its own; none before they are needed. Belongs to the event loop's thread."""

    def __init__(self) -> None:
        self._executor = ThreadPoolExecutor(THREADS, thread_name_prefix="unread")
        self._closed = False

    def run(self, work: Callable[[], _Result], done: _Done[_Result], /) -> None:
        loop = asyncio.get_running_loop()
        if self._closed:
            loop.call_soon(done, None, OSError("the gateway stops"))
            return

        def tell(future: "asyncio.Future[_Result]") -> None:
            if future.cancelled():
                done(None, OSError("the gateway stops"))
                return
            error = future.exception()
            assert error is None or isinstance(error, Exception)
            done(None if error is not None else future.result(), error)

        loop.run_in_executor(self._executor, work).add_done_callback(tell)

    def close(self) -> None:
        self._closed = True
        self._executor.shutdown(wait=False)


class SpillSpace:
    """One for a gateway. Belongs to the event loop's thread."""

    def __init__(
        self,
        directory: Path,
        total_bytes: int,
        clock: Callable[[], float],
        worker: Worker | None = None,
        make_file: Callable[[Path], SpillFile] = SpillFile,
    ) -> None:
        self._directory = directory
        self._tally = FairShareCounter(total_bytes)
        self._clock = clock
        self._worker: Worker = worker or Threads()
        self._make_file = make_file
        self._file: SpillFile | None = None
        self._rests_until_s = float("-inf")
        self._failing = False
        self._freed: Callable[[], None] = lambda: None

    @property
    def used_bytes(self) -> int:
        """What all answers hold."""
        return self._tally.used_bytes

    def when_freed(self, callback: Callable[[], None]) -> None:
        """Have ``callback`` called each time that some was given back."""
        self._freed = callback

    def close(self) -> None:
        """Nothing is written or read any more."""
        self._rests_until_s = float("inf")
        self._worker.close()

    def allocate(
        self, key: str, tenant: str, held_bytes: int, size_bytes: int
    ) -> tuple[SpillFile, list[Extent]] | None:
        """Places for so many bytes of an answer that holds ``held_bytes`` of the file; None: there is no room
        for all of them. As long as somebody holds a place in it, it is the same file."""
        count = -(-size_bytes // PAYLOAD_BYTES)
        room_bytes = self._tally.room_bytes(key, tenant, held_bytes)
        if count * BLOCK_BYTES > room_bytes or self._clock() < self._rests_until_s:
            return None
        self._tally.count(key, tenant, count * BLOCK_BYTES)
        if self._file is None:
            self._file = self._make_file(self._directory)
        return self._file, self._file.allocate(count, size_bytes)

    def free(self, key: str, tenant: str, file: SpillFile, extents: Sequence[Extent]) -> None:
        """Free ``extents``, which are neither needed nor being written any more."""
        self._tally.count(key, tenant, -BLOCK_BYTES * sum(len(each.blocks) for each in extents))
        for each in extents:
            file.free(each)
        self._close_unused(file)
        self._freed()

    def write(
        self,
        file: SpillFile,
        extents: Sequence[Extent],
        pieces: Sequence[bytes],
        done: Callable[[bool], None],
    ) -> None:
        """``done`` is told whether it was written."""
        self._run(
            file,
            lambda: file.write(extents, pieces),
            lambda _, error: done(error is None),
        )

    def read(self, file: SpillFile, extent: Extent, done: _Done[bytes]) -> None:
        """``done`` is told what was written there, or why it cannot be read."""
        self._run(file, lambda: file.read(extent), done)

    def _run(self, file: SpillFile, work: Callable[[], _Result], done: _Done[_Result]) -> None:
        def tell(result: _Result | None, error: Exception | None) -> None:
            file.jobs -= 1
            self._note(error)
            done(result, error)
            self._close_unused(file)

        file.jobs += 1
        self._worker.run(work, tell)

    def _note(self, error: Exception | None) -> None:
        """Whether the file can be used, as was just seen."""
        if error is not None:
            self._rests_until_s = max(self._rests_until_s, self._clock() + REST_S)
            if not self._failing:
                _log.warning("unread_not_spilled", directory=str(self._directory), error=str(error))
            self._failing = True
        elif self._failing:
            self._failing = False
            _log.warning("unread_spilled_again", directory=str(self._directory))

    def _close_unused(self, file: SpillFile) -> None:
        if not file.used and not file.jobs and self._file is file:
            self._file = None
            if not file.closed:
                self._worker.run(file.close, _ignore)


def _ignore(_: Any, __: Exception | None) -> None:
    """It was closed, or could not be."""
