"""The requests of one model, replayed in the simulator: the gateway's own scheduler and queue, engines that
batch, a virtual clock."""

import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from gateway.scheduling.base import DeploymentView
from gateway.scheduling.scheduler import Scheduler
from gateway.tools.simulate.calendar import Calendar
from gateway.tools.simulate.engine import SimulatedEngine
from gateway.tools.simulate.fleet import ROUTE, SimulatedDeployment, SimulatedDevice, seen_on
from gateway.tools.simulate.gateway import SimulatedGateway
from gateway.tools.simulate.inputs import Job
from gateway.tools.simulate.queues import FairQueue
from gateway.tools.simulate.tally import PolicyTally, Slo
from gateway.tools.simulate.traces import DEFAULT_BLOCK_TOKENS
from gateway.tools.simulate.world import Rules, SimulatedWorld
from gateway.tools.whatif.changes import PlannedDeployment
from gateway.tools.whatif.facts import ReplayFact
from gateway.tools.whatif.fleet import QueueNow
from gateway.tools.whatif.outcomes import Outcomes, ServiceLevel
from gateway.tools.whatif.speeds import performance_of

_WHOLE = "whole"
"""The kind of a job whose answer comes in one piece."""

EVERY = 500
"""Requests between two reports."""


@dataclass(frozen=True, slots=True)
class ReplayedJobs:
    """The requests of one model."""

    jobs: Sequence[Job]
    """In the order of arrival, from the beginning of what was recorded."""
    estimated: int
    """Those whose tokens nobody counted: they are taken for the median."""


def jobs_of(facts: Sequence[ReplayFact], begin_s: float) -> ReplayedJobs | None:
    """None where no engine has counted the tokens of any: there is nothing to go by."""
    inputs = [fact.tokens_in for fact in facts if fact.tokens_in is not None]
    outputs = [fact.tokens_out for fact in facts if fact.tokens_out is not None]
    if not inputs or not outputs:
        return None
    usual_in, usual_out = round(statistics.median(inputs)), round(statistics.median(outputs))
    jobs, estimated = [], 0
    for fact in facts:
        tokens_in, tokens_out = fact.tokens_in, fact.tokens_out
        if tokens_in is None or tokens_out is None:
            estimated += 1
            tokens_in = usual_in if tokens_in is None else tokens_in
            tokens_out = usual_out if tokens_out is None else tokens_out
        whole = fact.whole and fact.outcome == "answered"
        jobs.append(
            Job(
                fact.at_s - begin_s,
                max(1, tokens_in),
                max(1, tokens_out),
                tier=fact.tier,
                tenant=fact.tenant,
                kind=_WHOLE if whole else "",
                cached_tokens=min(fact.tokens_cached, tokens_in),
            )
        )
    return ReplayedJobs(jobs, estimated)


@dataclass(frozen=True, slots=True)
class ModelReplay:
    """One model of a plan. Equal ones come out equal."""

    model: str
    deployments: Sequence[PlannedDeployment]
    policy: str
    queue: QueueNow
    scale: float
    seed: int
    level: ServiceLevel

    def run(self, jobs: Sequence[Job], report: Callable[[int], None] = lambda done: None) -> Outcomes:
        """What comes of ``jobs``. ``report`` is told every so often how many have come."""
        sites = [_site(each) for each in self.deployments]
        known = {each.device: each.speeds for each in self.deployments}
        scheduler = Scheduler(self.policy, seed=self.seed, performance=performance_of(list(known.values())))
        calendar = Calendar()
        queue = FairQueue(self.queue.weights, self.queue.ageing_s)
        gateway = SimulatedGateway(
            calendar, sites, scheduler, queue, block_tokens=DEFAULT_BLOCK_TOKENS, knows_output_lengths=False
        )
        tally = _ReplayTally(Slo(), found=Outcomes(self.level), scale=self.scale)
        slots = sum(each.slots for each in self.deployments)
        rules = Rules(max_requests=self.queue.max_requests + slots, max_wait_s=self.queue.max_wait_s)
        devices = [site.device for site in sites]
        world = SimulatedWorld(calendar, [gateway], devices, (), tally, rules, seed=self.seed)
        figures = world.run(self._coming(jobs, report))
        found = tally.found
        found.refused, found.ended_s = tally.rejected, figures.ended_s
        found.busy_s = sum(device.engine.busy_until(figures.ended_s) for device in devices)
        return found

    def _coming(self, jobs: Sequence[Job], report: Callable[[int], None]) -> Iterator[Job]:
        for number, job in enumerate(jobs):
            if number % EVERY == 0:
                report(number)
            yield job if self.scale == 1.0 else _sooner(job, self.scale)
        report(len(jobs))


@dataclass(slots=True)
class _ReplayTally(PolicyTally):
    """Keeps what came of each request."""

    found: Outcomes = field(kw_only=True)
    scale: float = field(kw_only=True)

    def add_completed(
        self, job: Job, ttft_s: float, latency_s: float, cached_tokens: int, queued_s: float
    ) -> None:
        whole = job.kind == _WHOLE
        at_s = job.at_s * self.scale
        self.found.answered(at_s, ttft_s, queued_s, latency_s, job.output_tokens, whole=whole)


def _sooner(job: Job, scale: float) -> Job:
    """``job`` when requests come so many times as fast."""
    return Job(
        job.at_s / scale,
        job.input_tokens,
        job.output_tokens,
        tier=job.tier,
        tenant=job.tenant,
        kind=job.kind,
        cached_tokens=job.cached_tokens,
    )


def _site(planned: PlannedDeployment) -> SimulatedDeployment:
    view = DeploymentView(
        key=planned.key,
        agent=planned.key.partition("/")[0],
        model=planned.model,
        routes=frozenset({ROUTE}),
        slots=planned.slots,
        device=planned.device,
        rtt_s=planned.rtt_s,
        kv_free_tokens=planned.kv_tokens,
        kv_tokens=planned.kv_tokens,
    )
    engine = SimulatedEngine(planned.speeds.pace(planned.slots, planned.kv_tokens), DEFAULT_BLOCK_TOKENS)
    return seen_on(SimulatedDevice(engine, planned.slots, planned.speeds.fixed_s), view)


def by_model(facts: Sequence[ReplayFact]) -> Mapping[str, list[ReplayFact]]:
    """The facts of each model, in their order."""
    found: dict[str, list[ReplayFact]] = {}
    for fact in facts:
        found.setdefault(fact.model, []).append(fact)
    return found
