"""A waiting room with slots behind it, under a virtual clock: what it promises beside what comes of it."""

import bisect
import heapq
import itertools
import random
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from statistics import median

from gateway.domain.errors import QueueFull
from gateway.domain.request import Principal, Request, RequestBody, Tier
from gateway.scheduling.base import DeploymentConstraints
from gateway.scheduling.queue.tickets import Capacity, Ticket
from gateway.scheduling.queue.waiting_room import QueueSettings, WaitingRoom

FIT = DeploymentConstraints("chat")
HOLD_WEIGHT = 0.05


@dataclass(frozen=True)
class Source:
    """A stream of requests with exponential pauses; works are drawn from a log-normal distribution."""

    tenant: str
    rate_per_s: float
    tier: Tier = Tier.STANDARD
    tokens: float = 200.0
    sigma: float = 0.7


@dataclass
class Job:
    """One request and what was promised to it."""

    source: Source
    came_s: float
    tokens: int
    predicted_s: float | None = None
    waited_s: float | None = None
    told: list[tuple[float, float, float]] = field(default_factory=list)
    """When it was sent away, for how long, and how many were to get a slot until then."""


class Room:
    """``slots`` slots that do ``tokens_per_s`` each. Those sent away come back when they were told to."""

    def __init__(
        self, slots: int, tokens_per_s: float = 50.0, seed: int = 1, tries: int = 3, **settings: object
    ) -> None:
        self.room = WaitingRoom(QueueSettings(**settings))  # type: ignore[arg-type]
        self.slots = self.free = slots
        self.now = 0.0
        self.hold_s = 2.0
        self.jobs: list[Job] = []
        self.departures: list[float] = []
        self._tokens_per_s = tokens_per_s
        self._tries = tries
        self._random = random.Random(seed)
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = itertools.count()
        self._waiting: dict[int, Job] = {}

    def run(self, sources: list[Source], until_s: float) -> None:
        for source in sources:
            self._at(self._random.expovariate(source.rate_per_s), self._coming(source))
        while self._events and self._events[0][0] <= until_s:
            self.now, _, do = heapq.heappop(self._events)
            do()

    def _at(self, when_s: float, do: Callable[[], None]) -> None:
        heapq.heappush(self._events, (when_s, next(self._numbers), do))

    def _coming(self, source: Source) -> Callable[[], None]:
        def come() -> None:
            tokens = max(1, int(self._random.lognormvariate(0.0, source.sigma) * source.tokens))
            job = Job(source, self.now, tokens)
            self.jobs.append(job)
            self._enter(job)
            self._at(self.now + self._random.expovariate(source.rate_per_s), come)

        return come

    def _enter(self, job: Job) -> None:
        request = Request(
            "r",
            Principal("k", "k", job.source.tenant),
            "POST",
            "/",
            (),
            "m",
            "chat",
            True,
            RequestBody(b"{}"),
            self.now,
            "chat",
            tier=job.source.tier,
            output_tokens=job.tokens,
        )
        capacity = Capacity(self.slots, min(self.free, self.room.depth("m") + 1), self.hold_s)
        predicted_s = self.room.predicted_wait_s("m", request.tier, job.source.tenant, capacity, self.now)
        try:
            ticket = self.room.enter(request, capacity, self.now)
        except QueueFull as full:
            wait_s = full.retry_after_s or 0.0
            departures = wait_s * self.room.departures_per_s("m", capacity, self.now)
            job.told.append((self.now, wait_s, departures))
            if len(job.told) < self._tries:
                self._at(self.now + wait_s, lambda: self._enter(job))
            return
        job.predicted_s = predicted_s
        self._waiting[ticket.number] = job
        self._give()

    def _give(self) -> None:
        if self.free:
            for ticket in self.room.next_tickets("m", {FIT: self.free}, self.now):
                self._begin(ticket)
        assert 0 <= self.free <= self.slots
        assert not (self.free and self.room.depth("m")), "a slot is idle while somebody waits"
        self.room.still_waiting("m", self.now)

    def _begin(self, ticket: Ticket) -> None:
        job = self._waiting.pop(ticket.number)
        job.waited_s = self.now - ticket.entered_s
        self.room.leave(ticket, self.now, departed=True)
        self.departures.append(self.now)
        self.free -= 1
        hold_s = job.tokens / self._tokens_per_s * self._random.uniform(0.7, 1.3)
        self._at(self.now + hold_s, lambda: self._end(hold_s))

    def _end(self, hold_s: float) -> None:
        self.free += 1
        self.hold_s += HOLD_WEIGHT * (hold_s - self.hold_s)
        self._give()

    def waits(self, tier: Tier | None = None, tenant: str | None = None) -> Iterator[tuple[float, float]]:
        """Of those who had to wait: what was predicted, and what it was."""
        for job in self.jobs:
            fits = tier in (None, job.source.tier) and tenant in (None, job.source.tenant)
            if fits and job.waited_s and job.predicted_s:
                yield job.predicted_s, job.waited_s

    def promises(self) -> Iterator[tuple[float, float]]:
        """Of those sent away: for how long, and when as many as were meant really had got a slot."""
        for job in self.jobs:
            for told_s, wait_s, departures in job.told:
                last = bisect.bisect(self.departures, told_s) + round(departures) - 1
                if last < len(self.departures):
                    yield wait_s, self.departures[last] - told_s


def median_error(pairs: Iterable[tuple[float, float]]) -> float:
    """Of what was said against what came of it, as a share of the latter."""
    return median(abs(said - was) / was for said, was in pairs if was > 0)
