"""The latest lines of this process's log, in memory, for who reads them over the admin API.

Lines come from any thread. To add some takes a lock and a few operations, whether or not somebody reads.
"""

import contextlib
import secrets
import threading
from collections import deque
from collections.abc import Callable, Iterator
from itertools import islice
from typing import NamedTuple

from shared.process.logs import keep_lines

CHUNK_BYTES = 128
"""What Python takes for lines that came together, besides their text."""


class LogPosition(NamedTuple):
    """Between two lines of a process: behind the one of this number, counted from 1."""

    epoch: str
    """Of the process: another one counts from 1 again."""
    number: int

    def __str__(self) -> str:
        return f"{self.epoch}.{self.number}"

    @classmethod
    def read(cls, text: str) -> "LogPosition":
        """Raises ValueError."""
        epoch, point, number = text.partition(".")
        if not (point and epoch.isalnum() and number.isascii() and number.isdigit() and len(text) < 40):
            raise ValueError(f"{text[:40]!r} is no position in a log")
        return cls(epoch, int(number))


class LogLines(NamedTuple):
    """Some lines, and what was between the position that was asked for and the first of them."""

    position: LogPosition
    """Behind the last of them."""
    lines: list[bytes]
    dropped: int
    """Lines that were kept no more."""


class LogRing:
    """Holds lines of ``limit_bytes`` together; the oldest go first."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._chunks = deque[tuple[bytes, int]]()
        """Lines that came together, each with its end, and how many."""
        self._bytes = 0
        self._count = 0
        self._end = 0
        """The number of the last line."""
        self._epoch = secrets.token_hex(4)
        self._lock = threading.Lock()
        self._wake: tuple[Callable[[], None], ...] = ()

    def add(self, lines: bytes, count: int) -> None:
        """So many lines in JSON, as they were written, each with its end."""
        with self._lock:
            self._chunks.append((lines, count))
            self._end += count
            self._count += count
            self._bytes += len(lines) + CHUNK_BYTES
            while self._bytes > self._limit_bytes:
                self._drop(self._bytes - self._limit_bytes)
        for wake in self._wake:
            wake()

    def _drop(self, excess_bytes: int) -> None:
        """The oldest lines that came together, or as many of them as are too many."""
        lines, count = self._chunks.popleft()
        self._bytes -= len(lines) + CHUNK_BYTES
        self._count -= count
        cut = lines.find(b"\n", excess_bytes - 1) + 1
        if 0 < cut < len(lines):
            left, left_count = lines[cut:], count - lines.count(b"\n", 0, cut)
            self._chunks.appendleft((left, left_count))
            self._bytes += len(left) + CHUNK_BYTES
            self._count += left_count

    def watch(self, wake: Callable[[], None]) -> None:
        """Have ``wake`` called with each line from now on, on the thread that logs."""
        with self._lock:
            self._wake = (*self._wake, wake)

    def unwatch(self, wake: Callable[[], None]) -> None:
        """Call it no more."""
        with self._lock:
            self._wake = tuple(each for each in self._wake if each is not wake)

    @property
    def end(self) -> LogPosition:
        """Behind the last line."""
        return LogPosition(self._epoch, self._end)

    def read(self, after: LogPosition | None, most: int) -> LogLines:
        """At most so many lines behind a position; None, and one of another process: from the first line that
        the process wrote."""
        with self._lock:
            number = 0 if after is None or after.epoch != self._epoch else min(after.number, self._end)
            first = self._end - self._count
            dropped = max(0, first - number)
            start = max(0, number - first)
            lines = list(islice(self._lines(start), most))
            return LogLines(LogPosition(self._epoch, first + start + len(lines)), lines, dropped)

    def _lines(self, start: int) -> Iterator[bytes]:
        """All but the first ``start`` that there are, without their ends."""
        for lines, count in self._chunks:
            if start < count:
                yield from lines.splitlines()[start:]
            start = max(0, start - count)


@contextlib.contextmanager
def log_kept(limit_bytes: int) -> Iterator[LogRing]:
    """A ring that gets every line of this process's log in the block."""
    ring = LogRing(limit_bytes)
    keep_lines(ring.add)
    try:
        yield ring
    finally:
        keep_lines(None)
