"""One simulation from its parts, and the search for the smallest fleet that is good enough.

The traffic is the same for each policy, the fleet a fresh one each time. In a search
(``--what-if 'ttft_p99<1,latency_p95<20'``) the fleet keeps its composition: of ``2*h100,4*l4`` are tried
``1*h100,2*l4`` and its multiples. More devices are taken to be never worse, so the number is doubled until it
is enough and then searched by halves.
"""

import operator
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any

from gateway.tools.bench.tally import Histogram
from gateway.tools.simulate.calendar import Calendar
from gateway.tools.simulate.devices import SimulatedModel
from gateway.tools.simulate.fleet import (
    DeploymentBuild,
    Fleet,
    deployments_of,
    device_count,
    fleet_text,
    scaled,
)
from gateway.tools.simulate.gateway import SimulatedGateway
from gateway.tools.simulate.inputs import BadSpec, Job, Traffic
from gateway.tools.simulate.lent_slots import LentSlots
from gateway.tools.simulate.policies import PolicyChoice
from gateway.tools.simulate.queues import FairQueue, FifoQueue
from gateway.tools.simulate.tally import Figures, PolicyTally, Slo
from gateway.tools.simulate.world import Rules, SimulatedWorld

MAX_TRIED_DEVICES = 4096
MAX_GATEWAYS = 64
MAX_SPAN_S = 1e9
"""From the first request to the last. What lies idle is simulated, too."""
_TERM = re.compile(
    r"\s*(?:(ttft|latency|tpot|queued)_p(\d{1,2}(?:\.\d+)?)|(good|rejected))\s*([<>])\s*(\d+(?:\.\d+)?)\s*"
)
_HELP = "such as ttft_p99<1, latency_p95<20, tpot_p50<0.05, queued_p99<2 (seconds), good>0.99, rejected<0.01"


@dataclass(frozen=True, slots=True)
class SimulationPlan:
    """What is to be simulated. ``rate`` is how many times as fast requests come as in ``traffic``; no more
    than ``requests`` of them do, and none after ``duration_s``."""

    traffic: Traffic
    fleet: Fleet
    model: SimulatedModel
    seed: int = 0
    rate: float = 1.0
    requests: int | None = None
    duration_s: float | None = None
    build: DeploymentBuild = field(default_factory=DeploymentBuild)
    slo: Slo = field(default_factory=Slo)
    rules: Rules = field(default_factory=Rules)
    gateways: int = 1
    """Each has its own queue and learns by itself; the agents divide their slots among them."""

    def jobs(self) -> Iterator[Job]:
        """The traffic as it comes in this plan. Raises BadTrace, and BadSpec where it lasts too long."""
        for job in islice(self.traffic.jobs(), self.requests):
            at_s = job.at_s / self.rate
            if self.duration_s is not None and at_s > self.duration_s:
                return
            if at_s > MAX_SPAN_S:
                raise BadSpec(
                    "--trace" if self.rate == 1.0 else "--rate",
                    f"a request comes {at_s:.3g} seconds after the first, and at most {MAX_SPAN_S:.0e} can "
                    "be simulated: are times of another unit taken for seconds?",
                )
            yield job if self.rate == 1.0 else replace(job, at_s=at_s)


def simulate(plan: SimulationPlan, choice: PolicyChoice) -> Figures:
    """Equal plans give equal figures. Raises BadSpec and BadTrace."""
    block_tokens = plan.traffic.block_tokens
    sites = deployments_of(plan.fleet, plan.model, block_tokens, plan.build, late=choice.late, seed=plan.seed)
    calendar, gateways = Calendar(), list[SimulatedGateway]()
    for number in range(plan.gateways):
        seen = [site.for_another() for site in sites] if number else sites
        gateways.append(
            SimulatedGateway(
                calendar,
                seen,
                choice.scheduler(seen, plan.seed),
                FairQueue() if choice.late else FifoQueue(),
                block_tokens=block_tokens,
                knows_output_lengths=choice.knows_output_lengths,
            )
        )
    devices = [site.device for site in sites]
    lent: list[LentSlots] = []
    if plan.gateways > 1 and choice.late:
        lent = [LentSlots(calendar, device.seen, device.slots) for device in devices]
        for gateway in gateways:
            gateway.share(lent)
    world = SimulatedWorld(
        calendar, gateways, devices, lent, PolicyTally(plan.slo), plan.rules, seed=plan.seed
    )
    return world.run(plan.jobs())


@dataclass(frozen=True, slots=True)
class Goal:
    """One condition. ``rank`` is a share of the requests for durations, None for shares themselves."""

    text: str
    what: str
    rank: float | None
    better: Callable[[float, float], bool]
    bound: float

    def met(self, figures: Figures) -> bool:
        return self.better(self.value(figures), self.bound)

    def value(self, figures: Figures) -> float:
        tally = figures.tally
        if self.rank is None:
            count: int = getattr(tally, self.what)
            return count / max(1, tally.requests)
        histogram: Histogram = getattr(tally, self.what)
        return histogram.percentile_s(self.rank) if histogram.count else 0.0


@dataclass(frozen=True, slots=True)
class Trial:
    """One fleet that was tried: its figures, and whether they meet the goals."""

    plan: SimulationPlan
    figures: Figures
    meets: bool

    @property
    def fleet(self) -> str:
        """As ``--fleet`` takes it."""
        return fleet_text(self.plan.fleet)

    def as_json(self, goals: tuple[Goal, ...]) -> dict[str, Any]:
        return {
            "meets": self.meets,
            "fleet": self.fleet,
            "devices": device_count(self.plan.fleet),
            "goals": {goal.text: goal.value(self.figures) for goal in goals},
        }


@dataclass(frozen=True, slots=True)
class FleetAnswer:
    """``found`` is the smallest fleet that was good enough; without one it is the largest that was tried.
    ``asked`` is the fleet that was given."""

    found: Trial
    asked: Trial
    tried: tuple[Trial, ...]
    """In order of size."""

    @property
    def arrivals_per_s(self) -> float:
        """Mean rate at which requests came."""
        figures = self.found.figures
        return figures.tally.requests / figures.span_s if figures.span_s else 0.0

    def as_json(self, goals: tuple[Goal, ...]) -> dict[str, Any]:
        return {
            **self.found.as_json(goals),
            "asked": self.asked.as_json(goals),
            "arrivals_per_s": self.arrivals_per_s,
            "tried": {trial.fleet: trial.meets for trial in self.tried},
        }


def gateway_counts(text: str) -> list[int]:
    """How many gateways there are to be, as ``1,4,16`` says it. Raises BadSpec."""
    counts = [part.strip() for part in text.split(",")]
    for count in counts:
        if not (count.isascii() and count.isdecimal() and 1 <= int(count) <= MAX_GATEWAYS):
            raise BadSpec("--gateways", f"{count!r} is no number from 1 to {MAX_GATEWAYS}")
    return list(dict.fromkeys(map(int, counts)))


def goals_of(text: str) -> tuple[Goal, ...]:
    """Conditions joined by commas. None may be refused unless ``rejected`` says how many. Raises BadSpec."""
    goals = [_goal(part) for part in text.split(",")]
    if all(goal.what != "rejected" for goal in goals):
        goals.append(Goal("rejected<=0", "rejected", None, operator.le, 0.0))
    return tuple(goals)


def smallest(
    plan: SimulationPlan,
    choice: PolicyChoice,
    goals: tuple[Goal, ...],
    report: Callable[[Trial], None] = lambda trial: None,
) -> FleetAnswer:
    """The answer for one policy. ``report`` is called with each fleet once it was tried.

    The fleet that was asked for is tried first. Raises BadSpec and BadTrace.
    """
    unit = device_count(scaled(plan.fleet, 1))
    tried: dict[int, Trial] = {}

    def enough(times: int) -> bool:
        if times not in tried:
            one = replace(plan, fleet=scaled(plan.fleet, times))
            figures = simulate(one, choice)
            tried[times] = Trial(one, figures, all(goal.met(figures) for goal in goals))
            report(tried[times])
        return tried[times].meets

    asked = device_count(plan.fleet) // unit
    enough(asked)
    low, high = 0, 1
    while not enough(high) and 2 * high * unit <= MAX_TRIED_DEVICES:
        low, high = high, 2 * high
    while enough(high) and high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    return FleetAnswer(tried[high], tried[asked], tuple(tried[times] for times in sorted(tried)))


def _goal(part: str) -> Goal:
    match = _TERM.fullmatch(part)
    if match is None:
        raise BadSpec("--what-if", f"{part.strip()!r} is no condition {_HELP}")
    better = operator.lt if match[4] == "<" else operator.gt
    rank = None if match[2] is None else float(match[2]) / 100
    return Goal(part.strip(), match[1] or match[3], rank, better, float(match[5]))
