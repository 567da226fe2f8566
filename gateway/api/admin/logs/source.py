"""Lines of this process's log that somebody wants."""

import asyncio
from collections import deque
from dataclasses import dataclass
from typing import NamedTuple

from gateway.api.admin.logs.line_filter import LineFilter
from gateway.observability.log_ring import LogPosition, LogRing

AT_ONCE = 2000
"""Lines that are looked at before others have their turn: some milliseconds."""
ANSWER_LINES = 2000
"""Most that are told at once; the others follow."""


class WantedLines(NamedTuple):
    """Those that were found."""

    position: LogPosition
    """Up to here lines were looked at."""
    lines: list[bytes]
    dropped: int
    """Lines of which it is not known whether they were wanted: they are kept no more."""
    more: bool = False
    """There are others behind."""


@dataclass(frozen=True)
class LogSource:
    """One process."""

    ring: LogRing

    async def before(self, wanted: LineFilter) -> WantedLines:
        """The last lines that are wanted, as many as the filter says."""
        end = self.ring.end
        found = deque[bytes](maxlen=wanted.lines)
        position: LogPosition | None = None
        while wanted.lines and (position is None or position.number < end.number):
            read = self.ring.read(position, AT_ONCE)
            found.extend(await asyncio.to_thread(_taken, read.lines, wanted))
            if not read.lines:
                break
            position = read.position
        return WantedLines(position or end, list(found), 0)

    async def after(self, position: LogPosition | None, wanted: LineFilter) -> WantedLines:
        """Those behind a position; None: all that this process wrote."""
        found: list[bytes] = []
        dropped = 0
        while True:
            read = self.ring.read(position, AT_ONCE)
            dropped += read.dropped
            position = read.position
            if len(read.lines) < AT_ONCE // 10:  # those of a second or two
                found += _taken(read.lines, wanted)
            else:
                found += await asyncio.to_thread(_taken, read.lines, wanted)
            more = position.number < self.ring.end.number
            if not more or len(found) >= ANSWER_LINES:
                return WantedLines(position, found, dropped, more)


def _taken(lines: list[bytes], wanted: LineFilter) -> list[bytes]:
    return [line for line in lines if wanted.takes(line)]
