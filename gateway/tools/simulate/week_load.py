"""Five weeks of requests: the lengths and the bursts of a trace, at a rate that follows the days of a week.

A trace of an hour has no week. So as many copies of it run at once as the busiest time needs, each going on
at a place that is drawn anew every five thousand requests, and of all their requests each is kept with the
chance that gives the rate of its time. Bursts keep their length thus. The week's rates are made up, not from
any trace: :data:`SHAPES`.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy
from numpy.typing import NDArray

from gateway.scheduling.scaling.bursts import PIECE_S, PIECES, packed
from gateway.scheduling.scaling.forecast import STEP_S, LoadSeries
from gateway.tools.simulate.devices import DevicePace
from gateway.tools.simulate.inputs import BadSpec, Job

DAY_S, WEEK_S = 86_400.0, 604_800.0
WEEKS_BEFORE = 4
MONDAY_S = 1_700_438_400.0
"""2023-11-20 00:00 UTC: when the first week begins."""

PERSISTS = 0.98
"""How much of the deviation from the shape is left after a step."""

WEEK_STEPS = int(WEEK_S / STEP_S)
BLOCK = 5000
"""Requests that follow each other as they do in the trace."""

MOST_REQUESTS = 20_000_000
"""Of all weeks."""

Floats = NDArray[numpy.floating[Any]]
Shape = Callable[["numpy.random.Generator", Floats], Floats]


@dataclass(frozen=True, slots=True)
class WeekTraffic:
    """What comes, and what came before."""

    before: LoadSeries
    """Device-seconds that were asked for in a second, of the weeks before, with their bursts."""
    at_s: Sequence[float]
    """When the requests of the week come, in seconds since 1970."""
    work_s: Sequence[float]
    """Device-seconds of each, with all slots taken."""
    read_s: Sequence[float]
    """Until its first token, once it has a slot."""

    def __iter__(self) -> Iterator[tuple[float, float, float]]:
        return zip(self.at_s, self.work_s, self.read_s, strict=True)


def work_of(job: Job, pace: DevicePace, slots: int) -> tuple[float, float]:
    """Device-seconds with all ``slots`` taken, and the part of them until the first token."""
    read_s = job.input_tokens * pace.token_s + pace.pair_s * job.input_tokens**2 / 2
    token_s = (pace.step_s + pace.weights_s) / slots + pace.token_s + pace.each_s
    context = job.input_tokens + job.output_tokens / 2
    return read_s + job.output_tokens * (token_s + pace.context_s * context), read_s


def traffic_of(
    jobs: Sequence[Job],
    shape: str,
    pace: DevicePace,
    slots: int,
    busy: float,
    *,
    noise: float,
    seed: int,
) -> WeekTraffic:
    """At the peak of the shape ``busy`` devices are kept busy. The rate deviates from the shape by ``noise``
    (a standard deviation of its logarithm), and for long at a time. Raises BadSpec."""
    if len(jobs) < 2 or jobs[-1].at_s <= 0:
        raise BadSpec("--trace", "a trace of one moment has no pace")
    chance = numpy.random.default_rng(seed)
    works = numpy.asarray([work_of(job, pace, slots) for job in jobs])
    steps = int((WEEKS_BEFORE + 1) * WEEK_S / STEP_S)
    middles = (numpy.arange(steps) + 0.5) * STEP_S
    rates = SHAPES[shape](chance, middles) * numpy.exp(_wander(chance, steps, noise))
    rates = rates * busy / float(works[:, 0].mean())
    count = float(rates.sum()) * STEP_S
    if count > MOST_REQUESTS:
        raise BadSpec("--replicas", f"{count:,.0f} requests are more than {MOST_REQUESTS:,}")
    weeks = [_week(chance, jobs, rates, number) for number in range(WEEKS_BEFORE + 1)]
    loads, bursts = [], []
    for number, (at_s, numbers) in enumerate(weeks[:-1]):
        since_s = at_s - number * WEEK_S
        step = (since_s // STEP_S).astype(int)
        loads.append(numpy.bincount(step, works[numbers, 0], WEEK_STEPS) / STEP_S)
        bursts.append(bursts_of(since_s))
    before = LoadSeries(MONDAY_S, numpy.concatenate(loads).tolist(), b"".join(bursts))
    at_s, numbers = weeks[-1]
    return WeekTraffic(
        before, (MONDAY_S + at_s).tolist(), works[numbers, 0].tolist(), works[numbers, 1].tolist()
    )


def bursts_of(since_s: Floats) -> bytes:
    """How many requests come in the pieces of each step of a week that they come so long after its
    beginning: as a gateway counts them, which knows their mean work alone."""
    pieces = numpy.bincount((since_s // PIECE_S).astype(int), minlength=WEEK_STEPS * PIECES)
    return b"".join(packed(each) for each in pieces.reshape(WEEK_STEPS, PIECES).tolist())


def _week(
    chance: "numpy.random.Generator", jobs: Sequence[Job], rates: Floats, number: int
) -> tuple[Floats, NDArray[numpy.int64]]:
    """When requests come in that week, in order, and which of ``jobs`` each is."""
    of_week = rates[number * WEEK_STEPS : (number + 1) * WEEK_STEPS]
    per_s = len(jobs) / jobs[-1].at_s
    copies = max(1, int(numpy.ceil(rates.max() / per_s)))
    times, numbers = [], []
    for _ in range(copies):
        places, chosen = _sequence(chance, jobs)
        share = of_week[(places // STEP_S).astype(int)] / (copies * per_s)
        kept = chance.random(len(places)) < share
        times.append(places[kept])
        numbers.append(chosen[kept])
    at_s, which = numpy.concatenate(times), numpy.concatenate(numbers)
    order = numpy.argsort(at_s, kind="stable")
    return at_s[order] + number * WEEK_S, which[order]


def _sequence(chance: "numpy.random.Generator", jobs: Sequence[Job]) -> tuple[Floats, NDArray[numpy.int64]]:
    """One copy for a week: when its requests come, and which of ``jobs`` they are."""
    gaps = numpy.diff([job.at_s for job in jobs], prepend=jobs[0].at_s)
    gaps[0] = gaps[1:].mean()
    count = int(1.5 * WEEK_S / float(gaps.mean())) + BLOCK
    starts = chance.integers(0, len(jobs), count // BLOCK + 1)
    numbers = ((starts[:, None] + numpy.arange(BLOCK)) % len(jobs)).ravel()
    places = numpy.cumsum(gaps[numbers])
    kept = places < WEEK_S
    return places[kept], numbers[kept]


def _wander(chance: "numpy.random.Generator", steps: int, noise: float) -> Floats:
    """A deviation that lasts hours, with the standard deviation ``noise``."""
    shocks = chance.normal(0.0, noise * (1.0 - PERSISTS**2) ** 0.5, steps)
    found = numpy.empty(steps)
    value = chance.normal(0.0, noise) if noise else 0.0
    for number in range(steps):
        found[number] = value = PERSISTS * value + shocks[number]
    return found


# --- Shapes, from 0 to about 1 ---


def _office(chance: "numpy.random.Generator", middles: Floats) -> Floats:
    """Much on weekdays from eight to six, less at noon, little at night and at weekends; 1 % more a week."""
    hour, day = middles % DAY_S / 3600, middles // DAY_S % 7
    opens, closes = 1 / (1 + numpy.exp(-(hour - 8.5) * 4)), 1 / (1 + numpy.exp((hour - 17.5) * 3))
    noon = 1 - 0.25 * numpy.exp(-((hour - 12.5) ** 2) / 0.5)
    found: Floats = 0.12 + numpy.where(day < 5, 0.84, 0.15) * opens * closes * noon
    return found * (1 + 0.01 * middles / WEEK_S)


def _jobs(chance: "numpy.random.Generator", middles: Floats) -> Floats:
    """Programs that begin on the hour at seven, twelve and twenty each day, and run for forty minutes."""
    hour = middles % DAY_S / 3600
    found: Floats = numpy.full(len(middles), 0.15)
    for begin in (7, 12, 20):
        found[(hour >= begin) & (hour < begin + 2 / 3)] = 0.95
    return found


def _erratic(chance: "numpy.random.Generator", middles: Floats) -> Floats:
    """No pattern: bursts of half an hour to three hours that come at any time."""
    found = numpy.full(len(middles), 0.2)
    place = 0.0
    while place < len(middles):
        place += float(chance.exponential(6 * 3600 / STEP_S))
        lasts = float(chance.uniform(1800, 10_800)) / STEP_S
        found[int(place) : int(place + lasts)] += float(chance.uniform(0.3, 0.8))
        place += lasts
    return found


SHAPES: MappingProxyType[str, Shape] = MappingProxyType(
    {"office": _office, "jobs": _jobs, "erratic": _erratic}
)
