"""Clients that hold engines up that others wait for.

An engine waits for a client only when neither memory nor the file has room for what the client has not
read (:mod:`gateway.dispatch.response_buffers`). As long as nobody else waits, it may: that is what credit is
for. While others wait, a reader has to read at some rate, and to be done with holding the engine up in some
time.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from gateway.dispatch.attempt import Attempt
from gateway.dispatch.response import EngineResponse
from gateway.fleet.deployment import Deployment
from shared.protocol.endpoint import Stream

WINDOW_S = 5.0
"""Over so long a reader's rate is measured."""

SETTLE_S = 1.0
"""After which the first window begins: until then kernels may take what no client has read."""

STEP_BYTES = 64 * 1024
"""Kernels move an answer in steps of about this size, so a reader may be one further than it seems to be."""

PAUSE_S = 1.0
"""An engine that is let go for less, because its reader took a step, counts as held up all the time."""

LOOK_AGAIN_S = 1.0
"""When to look again while slow readers were ended and their engines have not let go yet."""


class Reader(Protocol):
    """Whose answer is read; :class:`gateway.dispatch.running_answer.RunningAnswer`."""

    response: EngineResponse
    attempt: Attempt | None

    def read_too_slowly(self, reason: str) -> None:
        """End it: its slot is needed. ``reason`` is for its client."""


@dataclass(slots=True)
class _Mark:
    """How much a reader had taken at some time, and its rate in the window before, at most."""

    since_s: float
    taken_bytes: int
    window_s: float = SETTLE_S
    rate_bytes_s: float | None = None
    let_go_s: float | None = None
    """Since when the engine is not held up; None: it is."""
    looked_s: float | None = None
    """When others were last seen waiting for it."""
    kept_s: float = 0.0
    """So long others have waited while it was held up."""

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

    def keeps_waiting(self, now: float) -> None:
        """Others wait for it now. They are looked at at least once in a window while they do."""
        if self.looked_s is not None and now - self.looked_s <= WINDOW_S + LOOK_AGAIN_S:
            self.kept_s += now - self.looked_s
        self.looked_s = now


class SlowReaders:
    """Knows the answers whose readers hold their engines up. Belongs to the event loop's thread."""

    def __init__(self, least_bytes_s: float, most_kept_s: float = 0.0) -> None:
        """A reader is slow if it reads fewer bytes in a second than the one limit, or has kept other requests
        waiting for longer than the other; 0 turns a limit off."""
        self._least_bytes_s = least_bytes_s
        self._most_kept_s = most_kept_s
        self._marks: dict[str, dict[Reader, _Mark]] = {}
        """The readers for which engines wait or waited, by model."""
        self.stalls = 0
        """How often an engine began to wait for its reader; a pause of less than a second ends no wait."""
        self._freeing: dict[str, list[Stream]] = {}
        """Streams of answers that were ended and still hold their slots, by model."""

    def __len__(self) -> int:
        return sum(map(len, self._marks.values()))

    @property
    def held_up(self) -> int:
        """Answers whose engines wait for their readers now."""
        return sum(mark.let_go_s is None for marks in self._marks.values() for mark in marks.values())

    def note(self, model: str, reader: Reader, held_up: bool, now: float) -> None:
        """Record whether the engine of this answer has to wait for its reader. To be called every time it is
        found to wait, and once when it need not any more."""
        readers = self._marks.get(model, {})
        mark = readers.get(reader)
        if not held_up:
            if mark is not None and mark.let_go_s is None:
                mark.let_go_s = now
        elif mark is not None and not _let_go(mark, now):
            mark.let_go_s = None
            mark.update(reader.response.taken_bytes, now)
        elif self._least_bytes_s or self._most_kept_s:
            self.stalls += 1
            self._marks[model] = {**readers, reader: _Mark(now, reader.response.taken_bytes)}

    def forget(self, model: str, reader: Reader) -> None:
        """The answer has ended or has no reader any more."""
        readers = self._marks.get(model)
        if readers is not None and readers.pop(reader, None) is not None and not readers:
            del self._marks[model]

    def make_room(
        self, model: str, wanted: int, suits: Callable[[Deployment], bool], now: float
    ) -> float | None:
        """``wanted`` requests wait for ``model`` and find no slot free: end as many answers that are read too
        slowly, the slowest first, at deployments that suit them. When to look again; None: not by itself."""
        freeing = [each for each in self._freeing.pop(model, ()) if not each.closed]
        again_s: list[float] = []
        slow: list[tuple[float, Reader, Stream]] = []
        for reader, mark in list(self._marks.get(model, {}).items()):
            attempt = reader.attempt
            if attempt is None or attempt.stream.closed or _let_go(mark, now):
                self.forget(model, reader)
                continue
            mark.update(reader.response.taken_bytes, now)
            mark.keeps_waiting(now)
            if not self._too_slow(mark):
                again_s.append(self._due_s(mark, now))
            elif not attempt.deployment.free and suits(attempt.deployment):
                slow.append((mark.rate_bytes_s or 0.0, reader, attempt.stream))
        slow.sort(key=lambda each: each[0])
        for _, reader, stream in slow[: max(0, wanted - len(freeing))]:
            reason = self._reason(self._marks[model][reader])
            self.forget(model, reader)
            freeing.append(stream)
            reader.read_too_slowly(reason)
        if freeing:
            self._freeing[model] = freeing
            again_s.append(now + LOOK_AGAIN_S)
        return min(again_s, default=None)

    def _too_slow(self, mark: _Mark) -> bool:
        rate = mark.rate_bytes_s
        if rate is not None and rate < self._least_bytes_s:
            return True
        return 0 < self._most_kept_s <= mark.kept_s

    def _due_s(self, mark: _Mark, now: float) -> float:
        """When to check the reader again: the earliest time at which it may count as too slow."""
        if not self._most_kept_s:
            return mark.due_s
        return min(mark.due_s, now + max(self._most_kept_s - mark.kept_s, LOOK_AGAIN_S))

    def _reason(self, mark: _Mark) -> str:
        rate = mark.rate_bytes_s
        if rate is not None and rate < self._least_bytes_s:
            what = f"Less than {rate:.0f} bytes of the answer were read in a second"
        else:
            what = f"The answer was not read for {mark.kept_s:.0f} s as fast as it came"
        return (
            f"{what} while its engine waited and other requests waited for the engine; read faster, or send "
            "the request again later."
        )


def _let_go(mark: _Mark, now: float) -> bool:
    """Whether the engine has not had to wait for this reader for more than ``PAUSE_S``."""
    return mark.let_go_s is not None and now - mark.let_go_s > PAUSE_S
