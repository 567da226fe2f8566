"""The simulation: traffic, a gateway that decides, and engines, under one virtual clock.

A request arrives, waits in the line, is given to a deployment by the policy, reaches it half a round trip
later, waits and runs in its engine, and what it produces is seen half a round trip after that. Events of
the same instant happen in the order in which they were planned, so equal input gives equal output.
"""

import heapq
import itertools
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from gateway.scheduling.base import Outcome, PendingRequest, estimated_work
from gateway.scheduling.learning.estimates import OutputEstimates
from gateway.scheduling.scheduler import Scheduler
from gateway.tools.simulate.engine import NEVER, EngineRun
from gateway.tools.simulate.fleet import ROUTE, OpenSlots, SimulatedDeployment
from gateway.tools.simulate.inputs import Job
from gateway.tools.simulate.queues import FairQueue, FifoQueue
from gateway.tools.simulate.tally import Figures, PolicyTally, TimeWindows

LOOK = 64
"""Requests shown to a policy at once."""

REPAIR_S = 60.0

WINDOW_S = 10.0
"""How far from each other the devices' use is looked at."""

_Event = tuple[float, int, Callable[[Any, float], None], Any]


@dataclass(frozen=True, slots=True)
class Rules:
    """How the simulated gateway behaves beside its policy, and what happens to its fleet."""

    max_requests: int = 100_000
    """Requests that may wait and run at once; more are refused."""
    max_wait_s: float = NEVER
    """One that has waited so long in the gateway is refused."""
    mtbf_s: float = NEVER
    """Mean time of a device between its return and its loss."""
    repair_s: float = REPAIR_S
    """How long it is gone, before it loads its model anew."""


@dataclass(slots=True, eq=False)
class SimulatedRequest:
    """A request and what the gateway knows of it."""

    run: EngineRun
    item: PendingRequest
    site: SimulatedDeployment | None = None
    """Where it is; None while it waits."""
    epoch: int = 0
    placed_s: float = 0.0
    queued_s: float | None = None
    """How long it waited for its first slot."""
    client_first_s: float | None = None


class SimulatedWorld:
    """One run of one policy; :meth:`run` is called once."""

    def __init__(
        self,
        sites: Sequence[SimulatedDeployment],
        scheduler: Scheduler,
        queue: FairQueue | FifoQueue,
        tally: PolicyTally,
        rules: Rules,
        *,
        block_tokens: int,
        knows_output_lengths: bool,
        seed: int,
    ) -> None:
        """With ``knows_output_lengths`` the policy is told how long answers will be, else an estimate."""
        self._sites = {site.view.key: site for site in sites}
        self._scheduler = scheduler
        self._queue = queue
        self._tally = tally
        self._rules = rules
        self._block_tokens = float(block_tokens)
        self._knows_outputs = knows_output_lengths
        self._chance = random.Random(seed)
        self._calendar: list[_Event] = []
        self._order = itertools.count()
        self._flights: dict[int, SimulatedRequest] = {}
        self._estimates = OutputEstimates()
        self._model = sites[0].view.model
        self._slots = OpenSlots(sites)
        self._look_at_s = NEVER
        self._changed = False
        self._arrivals_over = False
        for site in sites:
            self._up(site, 0.0)

    def run(self, jobs: Iterator[Job]) -> Figures:
        """Every job to its end. Raises whatever ``jobs`` raises."""
        now = span_s = 0.0
        calendar, busy_s, windows = self._calendar, [0.0] * len(self._sites), TimeWindows(len(self._sites))
        self._plan(WINDOW_S, self._end_window, windows)
        job = next(jobs, None)
        while job is not None or self._flights:
            if job is not None and (not calendar or job.at_s <= calendar[0][0]):
                now = span_s = job.at_s
                self._arrive(job, now)
                job = next(jobs, None)
                if job is None:
                    busy_s = self._busy_s(now)
                    self._arrivals_over = True
            else:
                assert calendar, "requests wait, and the policy gives them to nobody"
                now, _, happen, subject = heapq.heappop(calendar)
                happen(subject, now)
            if self._changed:
                self._decide(now)
        shares = [each / span_s if span_s else 0.0 for each in busy_s]
        return Figures(self._tally, span_s, now, shares, windows.variation)

    # --- Requests ---

    def _arrive(self, job: Job, now: float) -> None:
        tally = self._tally
        tally.requests += 1
        if not self._slots.fits_somewhere(job) or len(self._flights) >= self._rules.max_requests:
            tally.rejected += 1
            return
        number = tally.requests
        flight = self._flights[number] = SimulatedRequest(
            EngineRun(number, job, now), self._item(number, job, now)
        )
        self._queue.enter(flight.item, now, large=self._slots.large(job))
        self._changed = True
        wait_s = self._rules.max_wait_s
        if job.deadline_s is not None:
            wait_s = min(wait_s, job.deadline_s)
        if wait_s < NEVER:
            self._plan(now + wait_s, self._give_up, flight)

    def _item(self, number: int, job: Job, now: float) -> PendingRequest:
        output = job.output_tokens
        if not self._knows_outputs:
            output = max(1, self._estimates.output(self._model, job.tenant, job.max_tokens).expected)
        return PendingRequest(
            number=number,
            route=ROUTE,
            work=estimated_work(job.input_tokens, output),
            arrived_s=now,
            tier=job.tier,
            tenant=job.tenant,
            deadline_s=None if job.deadline_s is None else now + job.deadline_s,
            session_key=job.session_key or None,
            input_tokens=job.input_tokens,
            output_tokens=output,
            prefix=job.prefix,
            block_tokens=self._block_tokens,
        )

    def _give_up(self, flight: SimulatedRequest, now: float) -> None:
        """It has waited as long as it may, unless it was given to a deployment."""
        if flight.queued_s is None:
            self._queue.leave(flight.item, now, departed=False)
            del self._flights[flight.run.number]
            self._tally.rejected += 1

    def _reach(self, flight: SimulatedRequest, now: float) -> None:
        """It comes to its deployment."""
        site = flight.site
        assert site is not None
        if flight.epoch != site.epoch:
            self._lose(flight, now)
            return
        if site.view.loaded:
            self._submit(site, flight.run, now)
            return
        site.held.append(flight.run)
        if len(site.held) == 1:
            self._plan(now + site.engine.pace.load_s, self._loaded, (site, site.epoch))

    def _submit(self, site: SimulatedDeployment, run: EngineRun, now: float) -> None:
        site.engine.submit(run, now)
        site.report()
        self._plan_wake(site)

    def _wake(self, site: SimulatedDeployment, now: float) -> None:
        engine = site.engine
        if engine.wake_s != now:
            return
        woken = engine.wake(now)
        site.report()
        self._plan_wake(site)
        seen_s = now + site.one_way_s
        for run in woken.first:
            flight = self._flights[run.number]
            flight.client_first_s = seen_s
            self._plan(seen_s, self._see_first, flight)
        for run in woken.finished:
            self._plan(seen_s, self._done, self._flights[run.number])

    def _see_first(self, flight: SimulatedRequest, now: float) -> None:
        if flight.site is not None and self._scheduler.first_token(flight.run.number, flight.site.view, now):
            self._changed = True

    def _done(self, flight: SimulatedRequest, now: float) -> None:
        run, first_s = flight.run, flight.client_first_s
        assert first_s is not None
        assert run.generated == run.job.output_tokens
        outcome = Outcome(
            True,
            now - flight.placed_s,
            first_s - flight.placed_s if first_s >= flight.placed_s else None,
            run.job.input_tokens,
            run.job.output_tokens,
            run.cached_tokens,
        )
        self._release(flight, outcome, now)
        del self._flights[run.number]
        self._estimates.learn(self._model, run.job.tenant, output_tokens=run.job.output_tokens)
        self._queue.over(flight.item, estimated_work(run.job.input_tokens, run.job.output_tokens), now)
        tally = self._tally
        tally.preemptions += run.preemptions
        tally.restarts += run.restarts
        tally.queued.add(flight.queued_s or 0.0)
        tally.add_completed(run.job, first_s - run.arrived_s, now - run.arrived_s, run.cached_tokens)

    def _release(self, flight: SimulatedRequest, outcome: Outcome, now: float) -> None:
        """It gives its slot back."""
        site = flight.site
        assert site is not None
        view = site.view
        view.in_flight -= 1
        assert view.in_flight >= 0
        view.outstanding = max(0.0, view.outstanding - flight.item.work) if view.in_flight else 0.0
        flight.site = None
        self._note(site)
        self._scheduler.finished(flight.item.number, view, outcome, now)

    # --- Decisions ---

    def _decide(self, now: float) -> None:
        self._changed = False
        if self._scheduler.is_resting(self._model, now):
            return
        queue = self._queue
        while queue and self._slots.free:
            items = queue.front(min(LOOK, self._slots.free), now)
            placed = sum(self._carry_out(part, now) for part in self._parts(items))
            if placed < len(items):
                break
        at_s = self._scheduler.look_again_s(self._model) if queue else None
        if at_s is not None and now < at_s < self._look_at_s:
            self._look_at_s = at_s
            self._plan(at_s, self._look_again, at_s)

    def _parts(self, items: Sequence[PendingRequest]) -> list[Sequence[PendingRequest]]:
        """Those that fit everywhere together, and each of the others alone."""
        parts: list[Sequence[PendingRequest]] = []
        small: list[PendingRequest] = []
        for item in items:
            if self._slots.large(self._flights[item.number].run.job):
                parts += [small, [item]] if small else [[item]]
                small = []
            else:
                small.append(item)
        return [*parts, small] if small else parts

    def _carry_out(self, items: Sequence[PendingRequest], now: float) -> int:
        """Ask the policy, and do as it says. Returns how many got a slot."""
        views = self._slots.views(self._flights[items[0].number].run.job)
        if not views:
            return 0
        assignments = self._scheduler.assign(self._model, items, views, now)
        for assignment in assignments:
            flight, site = self._flights[assignment.number], self._sites[assignment.key]
            view, item = site.view, flight.item
            assert view.free, f"{view.key} was given more than it takes"
            assert flight.site is None, "one request was given twice"
            self._queue.leave(item, now, departed=True)
            self._scheduler.placed(item, view, now)
            view.in_flight += 1
            view.outstanding += item.work
            self._note(site)
            flight.site, flight.epoch, flight.placed_s = site, site.epoch, now
            if flight.queued_s is None:
                flight.queued_s = now - flight.run.arrived_s
            self._plan(now + site.one_way_s, self._reach, flight)
        return len(assignments)

    def _note(self, site: SimulatedDeployment) -> None:
        """Its slots have changed."""
        if self._slots.note(site):
            self._changed = True

    def _look_again(self, at_s: float, now: float) -> None:
        if at_s == self._look_at_s:
            self._look_at_s = NEVER
            self._changed = True

    # --- Devices ---

    def _up(self, site: SimulatedDeployment, now: float) -> None:
        site.view.usable = True
        self._scheduler.deployment_added(site.view, now)
        self._note(site)
        if self._rules.mtbf_s < NEVER:
            self._plan(now + self._chance.expovariate(1 / self._rules.mtbf_s), self._fail, site)

    def _fail(self, site: SimulatedDeployment, now: float) -> None:
        """It is gone, and all it had."""
        site.epoch += 1
        site.view.usable = False
        site.planned_s = NEVER
        self._note(site)
        lost, site.held = [*site.engine.crash(now), *site.held], []
        for run in lost:
            self._lose(self._flights[run.number], now)
        site.report()
        self._scheduler.deployment_removed(site.view, now)
        self._plan(now + self._rules.repair_s + site.engine.pace.load_s, self._repaired, site)

    def _repaired(self, site: SimulatedDeployment, now: float) -> None:
        self._up(site, now)
        self._loaded((site, site.epoch), now)

    def _loaded(self, load: tuple[SimulatedDeployment, int], now: float) -> None:
        """Its model is there, unless the device was lost meanwhile."""
        site, epoch = load
        if epoch != site.epoch:
            return
        site.view.loaded = True
        self._scheduler.loaded(site.view, site.engine.pace.load_s)
        held, site.held = site.held, []
        for run in held:
            self._submit(site, run, now)

    def _lose(self, flight: SimulatedRequest, now: float) -> None:
        """Its deployment is gone: it waits for another, which goes on where its answer broke off."""
        flight.run.restarts += 1
        self._release(flight, Outcome(False, now - flight.placed_s), now)
        self._queue.come_back(flight.item, now, large=self._slots.large(flight.run.job))
        self._changed = True

    # --- Time ---

    def _busy_s(self, now: float) -> list[float]:
        return [site.engine.busy_until(now) for site in self._sites.values()]

    def _end_window(self, windows: TimeWindows, now: float) -> None:
        if not self._arrivals_over:
            windows.end(self._busy_s(now))
            self._plan(now + WINDOW_S, self._end_window, windows)

    def _plan_wake(self, site: SimulatedDeployment) -> None:
        wake_s = site.engine.wake_s
        if wake_s != site.planned_s:
            site.planned_s = wake_s
            if wake_s < NEVER:
                self._plan(wake_s, self._wake, site)

    def _plan(self, at_s: float, happen: Callable[[Any, float], None], subject: object) -> None:
        heapq.heappush(self._calendar, (at_s, next(self._order), happen, subject))
