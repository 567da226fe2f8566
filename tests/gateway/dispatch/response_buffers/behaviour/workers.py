"""What takes the place of threads that read and write a file: works when it is told to."""

from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from gateway.dispatch.response_buffers import SpillSpace
from gateway.dispatch.response_buffers.fair_share import FairShareCounter
from gateway.dispatch.response_buffers.file import Extent, SpillFile


class HeldWorker:
    """Keeps what it is to do until :meth:`step`, or does it at once if ``at_once``."""

    def __init__(self, *, at_once: bool = False) -> None:
        self.at_once = at_once
        self.waiting: deque[tuple[Callable[[], Any], Callable[[Any, Exception | None], None]]] = deque()

    def run(self, work: Callable[[], Any], done: Callable[[Any, Exception | None], None], /) -> None:
        self.waiting.append((work, done))
        if self.at_once:
            self.catch_up()

    def step(self) -> bool:
        """Do the oldest. False: there is nothing to do."""
        if not self.waiting:
            return False
        work, done = self.waiting.popleft()
        try:
            result = work()
        except OSError as error:
            done(None, error)
        else:
            done(result, None)
        return True

    def catch_up(self) -> None:
        while self.step():
            pass

    def close(self) -> None:
        pass


class Opened:
    """The files that were made, and what goes wrong with them."""

    def __init__(self) -> None:
        self.files: list[SpillFile] = []
        self.broken_for: str = ""
        """``write`` or ``read``: that fails."""

    def __call__(self, directory: Path) -> SpillFile:
        self.files.append(_File(directory, self))
        return self.files[-1]

    @property
    def open(self) -> int:
        """How many are not closed."""
        return sum(not file.closed for file in self.files)


class _File(SpillFile):
    def __init__(self, directory: Path, opened: Opened) -> None:
        super().__init__(directory)
        self._opened = opened

    def write(self, extents: Sequence[Extent], pieces: Sequence[bytes]) -> None:
        if self._opened.broken_for == "write":
            raise OSError("no disk")
        super().write(extents, pieces)

    def read(self, extent: Extent) -> bytes:
        if self._opened.broken_for == "read":
            raise OSError("no disk")
        return super().read(extent)


def space(
    directory: Path,
    total_bytes: int,
    *,
    worker: HeldWorker | None = None,
    clock: Callable[[], float] = lambda: 0.0,
    opened: Opened | None = None,
) -> SpillSpace:
    """In ``directory``; with a worker that works at once unless there is another."""
    make = opened or Opened()
    return SpillSpace(directory, total_bytes, clock, worker or HeldWorker(at_once=True), make)


def used_by_key(tally: FairShareCounter, key: str) -> int:
    """Bytes that answers to ``key`` hold, of all tenants."""
    return sum(size for (_, name), size in tally._by_key.items() if name == key)
