"""How many requests an engine should have at once. Pure; ``now`` is an argument."""

GRACE_S = 4.0
"""An engine gets less only after it had a queue for so long: while a batch fills, a queue is short-lived."""

STEP_S = 2.0
"""Least time between two changes of the limit, so that one change shows before the next is made."""

GROWTH_SHARE = 8
"""Without a queue the limit grows by an eighth of the slots per step."""

MEMORY_S = 30.0
"""For so long after an engine ran out of memory it gets no more than the half of what it had."""

FAILURES = 3
"""So many failed requests in a row, and the engine gets one at a time until one succeeds."""

DOUBT_S = 10.0
"""Or until so much time has passed: with one slot beside the many of others it may get no request to succeed
with, and whether it fails still is the gateway's to find out. One more failure, and it is doubted again."""

TRY_S = 10.0
"""After an engine refused a request as one too many it is tried with one more than it took so much later;
twice as much later after each such try that it refused, and again so much after one that it took."""

MAX_TRY_S = 320.0


class RefusalLimit:
    """How many requests an engine takes at once, as far as it has refused some as too many.

    Downwards it is learnt at once: an engine that refused a request beside ``others`` takes no more than
    those. Upwards it is tried, and only while all of the places are used: with one more, and after each try
    that went well with twice as many more. A try that is refused doubles the time until the next one, so that
    an engine whose size does not change refuses one request in some minutes.
    """

    def __init__(self) -> None:
        self.most: int | None = None
        """None: it has refused nothing, or was proved to take all of its slots since."""
        self._before: int | None = None
        """While a try is on, what it took before."""
        self._wanted = False
        """All of the places were used since the last look."""
        self._pause_s = TRY_S
        self._step = 1
        self._try_s = 0.0
        """When to try more, not before."""

    @property
    def learnt(self) -> int | None:
        """``most``, but for a try that is on. None: it refused no request as one too many."""
        return self.most if self._before is None else self._before

    def entered(self, running: int) -> None:
        """A request was let in; with it ``running`` are there."""
        if self.most is not None and running >= self.most:
            self._wanted = True

    def refused(self, others: int, now: float) -> None:
        """The engine had too many with ``others``, those that were there when the refused one was let in."""
        most = max(1, others)
        if self.most is None:
            self._pause_s = TRY_S
        elif self._before is not None and most < self.most:
            self._pause_s = min(2 * self._pause_s, MAX_TRY_S)
        if self.most is None or most < self.most:
            self.most, self._before, self._step = most, None, 1
        self._try_s = now + self._pause_s

    def served(self, others: int, slots: int, now: float) -> None:
        """The engine took a request beside ``others``, which may have been one more than before."""
        if self.most is None or self._before is None or others < self._before:
            return
        self._before = None
        if self.most >= slots:
            self.most = None
            return
        self._step *= 2
        self._pause_s = TRY_S
        self._try_s = now + TRY_S

    def look(self, slots: int, now: float) -> None:
        """Time has passed: perhaps more is to be tried."""
        if self.most is None or self._before is not None or not self._wanted or now < self._try_s:
            return
        self._wanted = False
        if self.most < slots:
            self._before, self.most = self.most, min(self.most + self._step, slots)


class EngineLimit:
    """How many requests one engine should have from this agent.

    Starts at the engine's slots. Falls towards what the engine really works on while it reports a queue (at
    most by half per step), to half when its memory runs out, and to what it takes when it refuses requests as
    too many (:class:`RefusalLimit`). Grows back afterwards. Is 1 for a while when every request fails.
    """

    def __init__(self, slots: int) -> None:
        self.slots = slots
        """What the engine can take at most, by its settings or its own words."""
        self.refusals = RefusalLimit()
        self._limit = slots
        self._queue_since_s: float | None = None
        self._stepped_s = float("-inf")
        self._held_until_s = float("-inf")
        self._failures = 0
        self._doubted_s: float | None = None

    def is_steady(self) -> bool:
        """A request that the engine serves changes nothing: none failed before it or was refused."""
        return self._failures == 0 and self.refusals.most is None

    @property
    def current(self) -> int:
        """The limit now, from 1 to ``slots`` (0 when there are none)."""
        limit = self._limit if self.refusals.most is None else min(self._limit, self.refusals.most)
        return min(1, limit) if self._failures >= FAILURES else limit

    def set_slots(self, slots: int) -> None:
        """The engine was configured anew. A limit that was not lowered follows."""
        self._limit = slots if self._limit == self.slots else min(self._limit, slots)
        self.slots = slots

    def observe(self, waiting: int, ours: int, now: float) -> None:
        """``waiting`` requests stand in the engine's own queue while ``ours`` of this agent are there."""
        self._doubt(now)
        self.refusals.look(self.slots, now)
        due = now - self._stepped_s >= STEP_S
        if waiting <= 0:
            self._queue_since_s = None
            if due and now >= self._held_until_s and self._limit < self.slots:
                self._step(self._limit + max(1, self.slots // GROWTH_SHARE), now)
            return
        if self._queue_since_s is None:
            self._queue_since_s = now
        if due and now - self._queue_since_s >= GRACE_S:
            self._step(min(self._limit, max(self._limit // 2, ours - waiting)), now)

    def ran_out_of_memory(self, now: float) -> None:
        """The engine said that memory did not do for a request. Those that fail together count once."""
        if now - self._stepped_s >= STEP_S:
            self._step(self._limit // 2, now)
        self._held_until_s = now + MEMORY_S

    def started_anew(self) -> None:
        """What the engine refused before says nothing of it now."""
        self.refusals = RefusalLimit()

    def finished(self, *, failed: bool) -> None:
        """A request is over; ``failed`` when the engine failed it (an answer of 4xx or 5xx is none)."""
        self._failures = self._failures + 1 if failed else 0
        self._doubted_s = None

    def _doubt(self, now: float) -> None:
        if self._failures < FAILURES:
            return
        if self._doubted_s is None:
            self._doubted_s = now
        elif now - self._doubted_s >= DOUBT_S:
            self._failures = FAILURES - 1
            self._doubted_s = None

    def _step(self, limit: int, now: float) -> None:
        self._limit = max(1, min(limit, self.slots))
        self._stepped_s = now
