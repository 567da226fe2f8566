"""Clients that read too slowly while their engines wait for them and others wait for the engines.

An engine waits for a client only when there is no memory for what the client has not read
(:mod:`gateway.unread`). As long as nobody else waits, it may: that is what credit is for.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from gateway.attempt import Attempt
from gateway.deployments import Deployment
from gateway.response import EngineResponse
from shared.endpoint import Stream

WINDOW_S = 20.0
"""Over so long a reader's rate is measured."""

SETTLE_S = 2.0
"""After which the first window begins: until then kernels may take what no client has read."""

STEP_BYTES = 64 * 1024
"""Kernels move an answer in steps of about this size, so a reader may be one further than it seems to be."""

LOOK_AGAIN_S = 1.0
"""When to look again while slow readers were ended and their engines have not let go yet."""


class Reader(Protocol):
    """Whose answer is read; :class:`gateway.answer.Answer`."""

    response: EngineResponse
    attempt: Attempt | None

    def read_too_slowly(self, rate_bytes_s: float) -> None:
        """End it: its slot is needed."""


@dataclass(slots=True)
class _Mark:
    """How much a reader had taken at some time, and its rate in the window before, at most."""

    since_s: float
    taken_bytes: int
    window_s: float = SETTLE_S
    rate_bytes_s: float | None = None

    @property
    def due_s(self) -> float:
        """When the window that runs is over."""
        return self.since_s + self.window_s

    def update(self, taken_bytes: int, now: float) -> None:
        """Once a window is over its rate is known, and the next begins."""
        if now < self.due_s:
            return
        if self.window_s == WINDOW_S:
            self.rate_bytes_s = (taken_bytes - self.taken_bytes + STEP_BYTES) / (now - self.since_s)
        self.since_s, self.taken_bytes, self.window_s = now, taken_bytes, WINDOW_S


class SlowReaders:
    """Knows the answers whose readers hold their engines back. Belongs to the event loop's thread."""

    def __init__(self, least_bytes_s: float) -> None:
        """Whoever reads less in a second is slow; 0: nobody is."""
        self._least_bytes_s = least_bytes_s
        self._behind: dict[str, dict[Reader, _Mark]] = {}
        """By model."""
        self._freeing: dict[str, list[Stream]] = {}
        """By model, streams of answers that were ended and that hold their slots still."""

    def __len__(self) -> int:
        return sum(map(len, self._behind.values()))

    def behind(self, model: str, reader: Reader, now: float) -> None:
        """The engine of this answer waits for its reader. To be said whenever it is found."""
        if not self._least_bytes_s:
            return
        readers = self._behind.setdefault(model, {})
        mark = readers.get(reader)
        if mark is None:
            readers[reader] = _Mark(now, reader.response.taken_bytes)
        else:
            mark.update(reader.response.taken_bytes, now)

    def forget(self, model: str, reader: Reader) -> None:
        """Nobody reads it any more."""
        readers = self._behind.get(model)
        if readers is not None and readers.pop(reader, None) is not None and not readers:
            del self._behind[model]

    def make_room(
        self, model: str, wanted: int, suits: Callable[[Deployment], bool], now: float
    ) -> float | None:
        """``wanted`` requests wait for ``model`` and find no slot free: end as many answers that are read too
        slowly, the slowest first, at deployments that suit them. When to look again; None: not by itself."""
        freeing = [each for each in self._freeing.pop(model, ()) if not each.closed]
        again_s: list[float] = []
        slow: list[tuple[float, Reader, Stream]] = []
        for reader, mark in list(self._behind.get(model, {}).items()):
            attempt = reader.attempt
            if attempt is None or attempt.stream.closed or not reader.response.behind:
                self.forget(model, reader)
                continue
            mark.update(reader.response.taken_bytes, now)
            rate = mark.rate_bytes_s
            if rate is None or rate >= self._least_bytes_s:
                again_s.append(mark.due_s)
            elif not attempt.deployment.free and suits(attempt.deployment):
                slow.append((rate, reader, attempt.stream))
        slow.sort(key=lambda each: each[0])
        for rate, reader, stream in slow[: max(0, wanted - len(freeing))]:
            self.forget(model, reader)
            freeing.append(stream)
            reader.read_too_slowly(rate)
        if freeing:
            self._freeing[model] = freeing
            again_s.append(now + LOOK_AGAIN_S)
        return min(again_s, default=None)
