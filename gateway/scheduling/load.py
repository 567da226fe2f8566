"""The load of one deployment as aggregates, so that reading it takes the same time however many requests run.

Two facts make a new request wait at a deployment that has a slot free: prompts that are read before its own,
one after the other, and the company in which it then writes its answer. The first is kept as a virtual clock
(when the prompts placed so far will have been read), set right by every first token that is seen; the second
as counts and their integrals over time. A deployment that is full has a third, the next slot that comes free.
"""

import heapq
import math
from dataclasses import dataclass, field
from typing import Any, NamedTuple

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


RunningRequest = tuple[int, float, Any, float, float, float, float, float, float, float, float]
"""What is kept of one that runs, as it was when it began: its tokens of context; when it was expected to end;
what the caller wants back then; when it began; what was left to read before it; how long its own prompt was
expected to take; when its first token was expected, less the correction known then; how long its answer was
expected to take; and of the deployment the integrals of ``count`` and of ``kv_tokens``, and all that was to
be read so far, itself included."""


@dataclass(slots=True, eq=False)
class DeploymentLoad:
    """What runs at one deployment. Its owner reports what begins, answers and ends; policies only read.

    Every method takes constant time, but for the heap of expected ends: its logarithm, and as long as it
    takes to make it when somebody asks for it first. Times are of the clock that ``now`` is read from. The
    public attributes are for policies to read, none to write.
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
    running: dict[int, RunningRequest] = field(default_factory=dict)
    """What runs, as far as it is followed, by number."""
    _ends_sum_s: float = 0.0
    """Sum over what runs of when it is expected to end."""
    _reading_off: float = 0.0
    _writing_off: float = 0.0
    _seen: dict[int, float] = field(default_factory=dict)
    """Requests whose first token was seen, and when they are expected to end since then."""
    _ends: list[tuple[float, int]] | None = None
    """A heap of when they are expected to end; None until somebody asks for the next that does."""
    _correction_s: float = 0.0
    _begun_sum_s: float = 0.0
    _kv_begun_sum_s: float = 0.0
    """Sums of when requests began, each once and each times its tokens, less the same of when requests ended,
    since last nothing ran: ``count * now`` less the first is the integral of ``count`` over that time, and
    ``kv_tokens * now`` less the second that of ``kv_tokens``."""
    _read_s: float = 0.0
    _share_s: float = 0.0
    _share_at_s: float = 0.0
    """When ``_share_s`` was true."""

    # --- For whoever keeps it ---

    def begin(
        self, number: int, now: float, kv_tokens: int, read_s: float, output_s: float, placed: Any = None
    ) -> None:
        """The request ``number`` was placed: reading its prompt is expected to take ``read_s`` once its turn
        has come, and writing the answer ``output_s`` after that. :meth:`end` gives ``placed`` back."""
        running, count = self.running, self.count
        if number in running or count >= MOST_RUNNING:
            return
        ready_s = self.ready_s if self.ready_s > now else now
        ahead_s = ready_s - now
        self.ready_s = ready_s = ready_s + read_s
        self._read_s = all_read_s = self._read_s + read_s
        kept = SHARE_MEMORY_S / (SHARE_MEMORY_S + now - self._share_at_s) if now > self._share_at_s else 1.0
        self._share_s = share_s = self._share_s * kept + read_s
        self._share_at_s = now
        self.reading_share = share_s / SHARE_MEMORY_S if share_s < _SHARE_MOST_S else SHARE_MOST
        end_s = ready_s + output_s
        if count:
            running_area = count * now - self._begun_sum_s
            kv_area = self.kv_tokens * now - self._kv_begun_sum_s
            self._begun_sum_s += now
            self._kv_begun_sum_s += kv_tokens * now
            self.kv_tokens += kv_tokens
            self._ends_sum_s += end_s
        else:
            running_area = kv_area = 0.0
            self._begun_sum_s, self._kv_begun_sum_s = now, kv_tokens * now
            self.kv_tokens, self._ends_sum_s = kv_tokens, end_s
        self.count = count + 1
        if self._ends is not None:
            heapq.heappush(self._ends, (end_s, number))
        running[number] = (
            kv_tokens,
            end_s,
            placed,
            now,
            ahead_s,
            read_s,
            ready_s - self._correction_s,
            output_s,
            running_area,
            kv_area,
            all_read_s,
        )

    def begun(self, number: int, now: float, *, kv_tokens: int, output_s: float) -> None:
        """The request ``number`` runs and has its first token, which was not seen here: there are
        ``output_s`` of its answer to come, as far as is known."""
        self.begin(number, now, kv_tokens=kv_tokens, read_s=0.0, output_s=0.0)
        one = self.running.get(number)
        if one is not None and number not in self._seen:
            self._expect_end(number, one, now + output_s)

    def first_token(self, number: int, now: float) -> None:
        """The first token of ``number`` was seen: those behind it are as much later or earlier as it is."""
        one = self.running.get(number)
        if one is None or number in self._seen:
            return
        _, _, _, begun_s, ahead_s, own_s, first_s, output_s, *_ = one
        if ahead_s > 0.0:
            self._note_queueing(ahead_s, own_s, now - begun_s)
        late_s = now - (first_s + self._correction_s)
        self._correction_s += late_s
        self._expect_end(number, one, now + output_s)
        self.ready_s = max(now, self.ready_s + late_s) if self._unread else now

    def end(self, number: int, now: float) -> RunningRequest | None:
        """``number`` is over, however it went. Returns what :meth:`company` takes, in third place what
        :meth:`begin` was given as ``placed``; None if it was not known here."""
        one = self.running.pop(number, None)
        if one is None:
            return None
        self.count = count = self.count - 1
        kv_tokens, end_s = one[0], one[1]
        self.kv_tokens -= kv_tokens
        self._begun_sum_s -= now
        self._kv_begun_sum_s -= kv_tokens * now
        seen = self._seen
        if not count:
            self._ends, self._ends_sum_s, self.ready_s = None, 0.0, now
            if seen:
                seen.clear()
            return one
        self._ends_sum_s -= seen.pop(number, end_s) if seen else end_s
        if self._ends is not None and len(self._ends) > 4 * count + 16:
            self._ends = None
        return one

    def company(self, one: RunningRequest, now: float) -> Concurrency:
        """What ran beside ``one``, which has just ended."""
        own_kv_tokens, _, _, begun_s, ahead_s, _, _, _, running_area, kv_area, read_s = one
        span_s = now - begun_s
        if span_s > 0:
            running = (self.count * now - self._begun_sum_s - running_area) / span_s
            kv_tokens = (self.kv_tokens * now - self._kv_begun_sum_s - kv_area) / span_s
        else:
            running, kv_tokens = self.count + 1.0, float(self.kv_tokens + own_kv_tokens)
        return Concurrency(ahead_s, running, kv_tokens, self._read_s - read_s)

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
        ends, running, seen = self._ends, self.running, self._seen
        if ends is None:
            ends = self._ends = [(seen.get(key, one[1]), key) for key, one in running.items()]
            heapq.heapify(ends)
        while ends:
            end_s, number = ends[0]
            one = running.get(number)
            if one is not None and seen.get(number, one[1]) == end_s:
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

    @property
    def _unread(self) -> int:
        """Requests whose first token was not seen."""
        return self.count - len(self._seen)

    def _expect_end(self, number: int, one: RunningRequest, end_s: float) -> None:
        """The first token of ``number`` was seen, and its end is expected at ``end_s`` now."""
        self._seen[number] = end_s
        self._ends_sum_s += end_s - one[1]
        if self._ends is not None:
            heapq.heappush(self._ends, (end_s, number))

    def _note_queueing(self, ahead_s: float, own_s: float, first_s: float) -> None:
        """The first token came after ``first_s``, of one whose own prompt was expected to take ``own_s`` and
        those before it ``ahead_s``."""
        waited = (first_s - own_s) / ahead_s
        weight = QUEUEING_WEIGHT * ahead_s / max(ahead_s, own_s)
        self.queueing += (min(max(waited, 0.0), 1.0) - self.queueing) * weight


def _off(off: float, ratio: float) -> float:
    """The logarithm of a pace after one more outcome that took ``ratio`` times as long."""
    if not 0.0 < ratio < math.inf:
        return off
    latest = math.log(ratio)
    latest = -PACE_MOST if latest < -PACE_MOST else PACE_MOST if latest > PACE_MOST else latest
    return off + (latest - off) * PACE_WEIGHT
