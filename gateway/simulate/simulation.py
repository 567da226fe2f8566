"""One simulation from its parts: the same traffic, once for each policy, on a fresh fleet each time."""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import islice

from gateway.simulate.devices import Model
from gateway.simulate.fleet import Fleet
from gateway.simulate.line import Fair, FirstCome
from gateway.simulate.policies import Choice
from gateway.simulate.site import Build, sites_of
from gateway.simulate.tally import Figures, Slo, Tally
from gateway.simulate.traffic import Job, Traffic
from gateway.simulate.world import Rules, World


@dataclass(frozen=True, slots=True)
class Plan:
    """What is to be simulated. ``rate`` is how many times as fast requests come as in ``traffic``; no more
    than ``requests`` of them do, and none after ``duration_s``."""

    traffic: Traffic
    fleet: Fleet
    model: Model
    seed: int = 0
    rate: float = 1.0
    requests: int | None = None
    duration_s: float | None = None
    build: Build = field(default_factory=Build)
    slo: Slo = field(default_factory=Slo)
    rules: Rules = field(default_factory=Rules)

    def jobs(self) -> Iterator[Job]:
        """The traffic as it comes in this plan. Raises BadTrace."""
        for job in islice(self.traffic.jobs(), self.requests):
            at_s = job.at_s / self.rate
            if self.duration_s is not None and at_s > self.duration_s:
                return
            yield job if self.rate == 1.0 else replace(job, at_s=at_s)


def simulate(plan: Plan, choice: Choice) -> Figures:
    """Equal plans give equal figures. Raises BadSpec and BadTrace."""
    block_tokens = plan.traffic.block_tokens
    sites = sites_of(plan.fleet, plan.model, block_tokens, plan.build, late=choice.late, seed=plan.seed)
    world = World(
        sites,
        choice.decider(sites, plan.model.name, plan.seed),
        Fair() if choice.late else FirstCome(),
        Tally(plan.slo),
        plan.rules,
        block_tokens=block_tokens,
        knows_outputs=choice.knows_outputs,
        seed=plan.seed,
    )
    return world.run(plan.jobs())
