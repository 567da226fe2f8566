"""The load of one deployment as aggregates, so that reading it takes the same time however many requests run.

Two facts make a new request wait at a deployment that has a slot free: prompts that are read before its own,
one after the other, and the company in which it then writes its answer. The first is kept as a virtual clock
(when the prompts placed so far will have been read), set right by every first token that is seen; the second
as counts and their integrals over time. A deployment that is full has a third, the next slot that comes free.
"""

import heapq
import math
from dataclasses import dataclass, field
from heapq import heappush
from typing import NamedTuple

SHARE_MEMORY_S = 20.0
"""Reading that was placed this long ago counts half in ``DeploymentLoad.reading_share``."""

SHARE_MOST = 0.7
"""Highest share of time that counts as reading: engines continue to write however much there is to read."""

_SHARE_MOST_S = SHARE_MOST * SHARE_MEMORY_S

PACE_WEIGHT = 0.05
PACE_MOST = 1.5
"""The weight of the latest outcome in a pace, and the largest error (a logarithm) of one outcome that
counts."""

QUEUEING_WEIGHT = 0.2
"""Weight of the latest first token in ``DeploymentLoad.queueing`` if the prompts ahead took at least as long
as its own; smaller if they took less."""

MOST_RUNNING = 1 << 16
"""Requests followed at one deployment. Slots are far fewer; what is over this runs unfollowed."""


class Concurrency(NamedTuple):
    """What ran beside a request on average, from when it was placed until it was over."""

    ahead_s: float
    """What was left to read when it came, as predicted."""
    running: float
    """Requests that ran, itself included."""
    kv_tokens: float
    """Tokens of context held by what ran, itself included."""
    read_s: float
    """Reading of others that was placed after it, as predicted."""


@dataclass(slots=True)
class RunningRequest:
    """What is kept of one that runs."""

    begun_s: float
    first_s: float
    """When its first token was expected, less the correction known when it began."""
    output_s: float
    kv_tokens: int
    ahead_s: float
    own_s: float
    end_s: float
    running_area: float
    kv_area: float
    read_s: float
    seen: bool = False


@dataclass(slots=True, eq=False)
class DeploymentLoad:
    """What runs at one deployment. Its owner reports what begins, answers and ends; policies only read.

    Every method takes constant time, but for the heap of expected ends (its logarithm). Times are of the
    clock that ``now`` is read from. The public attributes are for policies to read, none to write.
    """

    count: int = 0
    """Requests that run, as far as they are followed."""
    ready_s: float = 0.0
    """When the prompts placed so far will be read, as far as is known; in the past if they are."""
    kv_tokens: int = 0
    """Context that what runs will hold once it is written, in tokens."""
    reading_share: float = 0.0
    """Share of its time, 0 to ``SHARE_MOST``, that it spent reading prompts when last something began."""
    reading_pace: float = 1.0
    """How long prompts take here against what is known of the model on this class of device: 2 is twice as
    long."""
    writing_pace: float = 1.0
    """How long answers take to write, in the same way."""
    queueing: float = 1.0
    """The share (0 to 1) of the expected time of the prompts ahead for which a request really waited. It is
    small if the engine reads several prompts at once."""
    _ends_sum_s: float = 0.0
    """Sum over what runs of when it is expected to end."""
    _reading_off: float = 0.0
    _writing_off: float = 0.0
    _unread: int = 0
    """Requests whose first token was not seen."""
    _running: dict[int, RunningRequest] = field(default_factory=dict)
    _ends: list[tuple[float, int]] = field(default_factory=list)
    _correction_s: float = 0.0
    _area_s: float = 0.0
    _running_area: float = 0.0
    _kv_area: float = 0.0
    _read_s: float = 0.0
    _share_s: float = 0.0

    # --- For whoever keeps it ---

    def begin(self, number: int, now: float, *, kv_tokens: int, read_s: float, output_s: float) -> None:
        """The request ``number`` was placed: reading its prompt is expected to take ``read_s`` once its turn
        has come, and writing the answer ``output_s`` after that."""
        if number in self._running or self.count >= MOST_RUNNING:
            return
        if now > self._area_s:
            self._advance(now)
        wait_s = self.ready_s - now if self.ready_s > now else 0.0
        self.ready_s = ready_s = now + wait_s + read_s
        self._read_s = all_read_s = self._read_s + read_s
        self._share_s = share_s = self._share_s + read_s
        self.reading_share = share_s / SHARE_MEMORY_S if share_s < _SHARE_MOST_S else SHARE_MOST
        self.kv_tokens += kv_tokens
        self.count += 1
        self._unread += 1
        end_s = ready_s + output_s
        self._ends_sum_s += end_s
        heappush(self._ends, (end_s, number))
        self._running[number] = RunningRequest(
            now,
            ready_s - self._correction_s,
            output_s,
            kv_tokens,
            wait_s,
            read_s,
            end_s,
            self._running_area,
            self._kv_area,
            all_read_s,
        )

    def begun(self, number: int, now: float, *, kv_tokens: int, output_s: float) -> None:
        """The request ``number`` runs and has its first token, which was not seen here: there are
        ``output_s`` of its answer to come, as far as is known."""
        self.begin(number, now, kv_tokens=kv_tokens, read_s=0.0, output_s=0.0)
        one = self._running.get(number)
        if one is None or one.seen:
            return
        one.seen = True
        self._unread -= 1
        self._ends_sum_s += now + output_s - one.end_s
        one.end_s = now + output_s
        heapq.heappush(self._ends, (one.end_s, number))

    def first_token(self, number: int, now: float) -> None:
        """The first token of ``number`` was seen: those behind it are as much later or earlier as it is."""
        one = self._running.get(number)
        if one is None or one.seen:
            return
        one.seen = True
        self._unread -= 1
        self._note_queueing(one, now)
        late_s = now - (one.first_s + self._correction_s)
        self._correction_s += late_s
        self.ready_s = max(now, self.ready_s + late_s) if self._unread else now
        self._ends_sum_s += now + one.output_s - one.end_s
        one.end_s = now + one.output_s
        heapq.heappush(self._ends, (one.end_s, number))

    def end(self, number: int, now: float) -> RunningRequest | None:
        """``number`` is over, however it went. Returns what :meth:`company` takes; None if it was not known
        here."""
        one = self._running.pop(number, None)
        if one is None:
            return None
        if now > self._area_s:
            self._advance(now)
        self.count = count = self.count - 1
        self.kv_tokens -= one.kv_tokens
        if not one.seen:
            self._unread -= 1
        if not count:
            self._ends.clear()
            self._ends_sum_s, self.ready_s = 0.0, now
            return one
        self._ends_sum_s -= one.end_s
        if len(self._ends) > 4 * count + 16:
            self._ends = [(each.end_s, key) for key, each in self._running.items()]
            heapq.heapify(self._ends)
        return one

    def company(self, one: RunningRequest, now: float) -> Concurrency:
        """What ran beside ``one``, which has just ended."""
        span_s = now - one.begun_s
        if span_s > 0:
            running = (self._running_area - one.running_area) / span_s
            kv_tokens = (self._kv_area - one.kv_area) / span_s
        else:
            running, kv_tokens = self.count + 1.0, float(self.kv_tokens + one.kv_tokens)
        return Concurrency(one.ahead_s, running, kv_tokens, self._read_s - one.read_s)

    def note_pace(self, reading: float, writing: float) -> None:
        """A prompt took ``reading`` times, and an answer ``writing`` times, as long as is known of the
        class."""
        alike = reading == writing and self._reading_off == self._writing_off
        self._reading_off = _off(self._reading_off, reading)
        self.reading_pace = math.exp(self._reading_off)
        if alike:  # answers in one piece have one pace
            self._writing_off, self.writing_pace = self._reading_off, self.reading_pace
        else:
            self._writing_off = _off(self._writing_off, writing)
            self.writing_pace = math.exp(self._writing_off)

    # --- For policies ---

    def wait_s(self, now: float) -> float:
        """Seconds until the prompts placed so far are read, as far as is known."""
        return self.ready_s - now if self.ready_s > now else 0.0

    def remaining_s(self, now: float) -> float:
        """Seconds until what runs is over, summed over all that runs; predicted less done."""
        left_s = self._ends_sum_s - self.count * now
        return left_s if left_s > 0.0 else 0.0

    def next_free_s(self, now: float) -> float:
        """Until the next of what runs is expected to end; 0 when nothing runs.

        When one is overdue it is as if nothing were known but the mean.
        """
        ends, running = self._ends, self._running
        while ends:
            end_s, number = ends[0]
            one = running.get(number)
            if one is not None and one.end_s == end_s:
                if end_s > now:
                    return end_s - now
                break
            heapq.heappop(ends)
        count = self.count
        return self.remaining_s(now) / (count * count) if count else 0.0

    def slot_wait_s(self, now: float, before: int) -> float:
        """Seconds until a slot is free for a request with ``before`` others ahead of it."""
        wait_s = self.next_free_s(now)
        if before and self.count:
            wait_s += before * self.remaining_s(now) / self.count**2
        return wait_s

    # --- Within ---

    def _advance(self, now: float) -> None:
        """Time has passed until ``now``."""
        elapsed_s = now - self._area_s
        self._running_area += self.count * elapsed_s
        self._kv_area += self.kv_tokens * elapsed_s
        self._share_s *= SHARE_MEMORY_S / (SHARE_MEMORY_S + elapsed_s)
        self._area_s = now

    def _note_queueing(self, one: RunningRequest, now: float) -> None:
        if one.ahead_s > 0.0:
            waited = (now - one.begun_s - one.own_s) / one.ahead_s
            weight = QUEUEING_WEIGHT * one.ahead_s / max(one.ahead_s, one.own_s)
            self.queueing += (min(max(waited, 0.0), 1.0) - self.queueing) * weight


def _off(off: float, ratio: float) -> float:
    """The logarithm of a pace after one more outcome that took ``ratio`` times as long."""
    if not 0.0 < ratio < math.inf:
        return off
    latest = math.log(ratio)
    latest = -PACE_MOST if latest < -PACE_MOST else PACE_MOST if latest > PACE_MOST else latest
    return off + (latest - off) * PACE_WEIGHT
