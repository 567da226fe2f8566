"""Progress of a simulation: one line that is rewritten on a terminal, a line every few seconds elsewhere."""

import contextlib
import time
from collections.abc import Callable, Iterator
from typing import TextIO

from gateway.simulate.traffic import Job, Traffic

TERMINAL_S = 0.5
PLAIN_S = 5.0
_EVERY = 256
"""Requests between two looks at the clock."""
_CLEAR_LINE = "\r\x1b[K"


class Watched:
    """``traffic``, told on ``stream`` as it comes; a stream that cannot be written is no reason to stop."""

    def __init__(
        self, traffic: Traffic, label: str, stream: TextIO, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._traffic = traffic
        self._label = label
        self._stream = stream
        self._clock = clock
        self.block_tokens = traffic.block_tokens

    def jobs(self) -> Iterator[Job]:
        """See :class:`~gateway.simulate.traffic.Traffic`."""
        terminal = self._stream.isatty()
        every_s = TERMINAL_S if terminal else PLAIN_S
        began_s = self._clock()
        told_s = began_s
        try:
            for number, job in enumerate(self._traffic.jobs(), 1):
                yield job
                if number % _EVERY == 0 and (now := self._clock()) - told_s >= every_s:
                    told_s = now
                    rate = number / (now - began_s)
                    line = (
                        f"{self._label}: {number:,} requests came by {job.at_s:,.0f} s, {rate:,.0f} a second"
                    )
                    self._write(f"{_CLEAR_LINE}{line}" if terminal else f"{line}\n")
        finally:
            if terminal:
                self._write(_CLEAR_LINE)

    def _write(self, text: str) -> None:
        with contextlib.suppress(OSError):
            self._stream.write(text)
            self._stream.flush()
