"""One simulated gateway: its queue, its scheduler and what it sees of the fleet.

With several gateways, each decides for the requests that its own clients sent and by what it has learnt
itself. They share nothing but the agents, which lend each of them slots and tell each what runs for the
others.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from gateway.cluster.demand import DemandSender
from gateway.scheduling.base import Outcome, PendingRequest, estimated_work
from gateway.scheduling.elsewhere import RequestsElsewhere
from gateway.scheduling.learning.estimates import OutputEstimates
from gateway.scheduling.load import DeploymentLoad
from gateway.scheduling.scheduler import Scheduler
from gateway.tools.simulate.calendar import Calendar
from gateway.tools.simulate.engine import NEVER, EngineRun
from gateway.tools.simulate.fleet import ROUTE, OpenSlots, SimulatedDeployment
from gateway.tools.simulate.inputs import Job
from gateway.tools.simulate.lent_slots import LentSlots, SimulatedSession
from gateway.tools.simulate.queues import FairQueue, FifoQueue
from shared.protocol.others import Others

LOOK = 64
"""Requests shown to a policy at once."""


@dataclass(slots=True, eq=False)
class SimulatedRequest:
    """A request and what its gateway knows of it."""

    run: EngineRun
    item: PendingRequest
    gateway: "SimulatedGateway"
    site: SimulatedDeployment | None = None
    """Where it is; None while it waits."""
    epoch: int = 0
    entered: bool = False
    """Its agent has let it in."""
    placed_s: float = 0.0
    queued_s: float | None = None
    """How long it waited for its first slot."""
    client_first_s: float | None = None


class SimulatedGateway:
    """``send`` is called with each request that was given to a deployment."""

    def __init__(
        self,
        calendar: Calendar,
        sites: Sequence[SimulatedDeployment],
        scheduler: Scheduler,
        queue: FairQueue | FifoQueue,
        *,
        block_tokens: int,
        knows_output_lengths: bool,
    ) -> None:
        """With ``knows_output_lengths`` the policy is told how long answers will be, else an estimate."""
        self.sites = {site.view.key: site for site in sites}
        self.scheduler = scheduler
        self.queue = queue
        self.model = sites[0].view.model
        self.in_flight = 0
        self.changed = False
        """It has something to decide."""
        self.send: Callable[[SimulatedRequest, float], None] = lambda flight, now: None
        self._calendar = calendar
        self._block_tokens = float(block_tokens)
        self._knows_outputs = knows_output_lengths
        self._flights: dict[int, SimulatedRequest] = {}
        self._estimates = OutputEstimates()
        self._slots = OpenSlots(sites)
        self._look_at_s = NEVER
        self.demands = 0
        """How often it told an agent what waits."""
        self._lent: dict[SimulatedDeployment, LentSlots] = {}
        self._sessions: dict[SimulatedDeployment, SimulatedSession] = {}
        self._demand: DemandSender | None = None
        self._elsewhere: dict[str, RequestsElsewhere] = {}
        """What the agent of each device runs for other gateways."""

    def share(self, lent: Sequence[LentSlots]) -> None:
        """The agents divide their slots among several gateways, and are to be told what waits here. ``lent``
        are the slots of each."""
        self._lent = dict(zip(self.sites.values(), lent, strict=True))
        queue, calendar = self.queue, self._calendar
        assert isinstance(queue, FairQueue)
        self._demand = DemandSender(
            calendar,
            lambda model: queue.demand(calendar.now_s),
            lambda model: self._sessions.values(),
        )
        for site in self._lent:
            site.on_level = lambda site=site: self.note(site)  # type: ignore[misc]

    # --- Requests ---

    def arrive(self, number: int, job: Job, now: float) -> SimulatedRequest:
        """A client sends ``job``, which fits somewhere."""
        item = self._item(number, job, now)
        flight = self._flights[number] = SimulatedRequest(EngineRun(number, job, now), item, self)
        self.queue.enter(item, now, large=self._slots.large(job))
        self.changed = True
        return flight

    def fits_somewhere(self, job: Job) -> bool:
        return self._slots.fits_somewhere(job)

    def _item(self, number: int, job: Job, now: float) -> PendingRequest:
        output = job.output_tokens
        if not self._knows_outputs:
            output = max(1, self._estimates.output(self.model, job.tenant, job.max_tokens).expected)
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

    def give_up(self, flight: SimulatedRequest, now: float) -> None:
        """It waits no more."""
        self.queue.leave(flight.item, now, departed=False)
        del self._flights[flight.run.number]
        if self._demand is not None:
            self._demand.look(self.model)

    def see_first(self, flight: SimulatedRequest, now: float) -> None:
        """Its first token has come."""
        if flight.site is not None and self.scheduler.first_token(flight.run.number, flight.site.view, now):
            self.changed = True

    def done(self, flight: SimulatedRequest, now: float) -> None:
        """Its answer is whole."""
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
        self._estimates.learn(
            self.model,
            run.job.tenant,
            output_tokens=run.job.output_tokens,
            most_tokens=run.job.max_tokens,
        )
        self.queue.over(flight.item, estimated_work(run.job.input_tokens, run.job.output_tokens), now)

    def take_back(self, flight: SimulatedRequest, now: float) -> None:
        """It waits for a slot again: its agent refused it, or is gone."""
        self._release(flight, Outcome(False, now - flight.placed_s), now)
        self.queue.come_back(flight.item, now, large=self._slots.large(flight.run.job))
        self.changed = True

    def _release(self, flight: SimulatedRequest, outcome: Outcome, now: float) -> None:
        """It gives its slot back."""
        site = flight.site
        assert site is not None
        view = site.view
        view.in_flight -= 1
        self.in_flight -= 1
        assert view.in_flight >= 0
        view.outstanding = max(0.0, view.outstanding - flight.item.work) if view.in_flight else 0.0
        flight.site = None
        self.note(site)
        self.scheduler.finished(flight.item.number, view, outcome, now)

    # --- Decisions ---

    def decide(self, now: float) -> None:
        """Give those who wait to deployments, as the policy says."""
        self.changed = False
        if not self.scheduler.is_resting(self.model, now):
            self._assign(now)
        if self._demand is not None:
            self._demand.look(self.model)

    def _assign(self, now: float) -> None:
        queue = self.queue
        while queue and self._slots.free:
            items = queue.front(min(LOOK, self._slots.free), now)
            placed = sum(self._carry_out(part, now) for part in self._parts(items))
            if placed < len(items):
                break
        at_s = self.scheduler.look_again_s(self.model) if queue else None
        if at_s is not None and now < at_s < self._look_at_s:
            self._look_at_s = at_s
            self._calendar.plan(at_s, self._look_again, at_s)

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
        assignments = self.scheduler.assign(self.model, items, views, now)
        for assignment in assignments:
            flight, site = self._flights[assignment.number], self.sites[assignment.key]
            view, item = site.view, flight.item
            assert view.free, f"{view.key} was given more than it takes"
            assert flight.site is None, "one request was given twice"
            self.queue.leave(item, now, departed=True)
            self.scheduler.placed(item, view, now)
            view.in_flight += 1
            self.in_flight += 1
            view.outstanding += item.work
            self.note(site)
            if self._demand is not None and site in self._sessions:
                self._demand.opened(self._sessions[site], self.model)
            flight.site, flight.epoch, flight.placed_s = site, site.device.epoch, now
            flight.entered = False
            if flight.queued_s is None:
                flight.queued_s = now - flight.run.arrived_s
            self.send(flight, now)
        return len(assignments)

    def _look_again(self, at_s: float, now: float) -> None:
        if at_s == self._look_at_s:
            self._look_at_s = NEVER
            self.changed = True

    # --- Deployments ---

    def take_others(self, key: str, others: Others, now: float) -> None:
        """An agent has said what it runs for other gateways."""
        elsewhere = self._elsewhere.get(key)
        if elsewhere is None:
            elsewhere = RequestsElsewhere(self.scheduler, block_tokens=self._block_tokens)
            self._elsewhere[key] = elsewhere
        view = self.sites[key].view
        if elsewhere.take(others, {key: view}.get, now):
            self.changed = True

    def _told(self) -> None:
        self.demands += 1

    def note(self, site: SimulatedDeployment) -> None:
        """Its slots have changed."""
        if self._slots.note(site):
            self.changed = True

    def came(self, site: SimulatedDeployment, now: float) -> None:
        """The device is there."""
        site.view.usable = True
        if self._demand is not None:
            session = SimulatedSession(self._calendar, site, self._lent[site], self._told)
            self._sessions[site] = session
            self._demand.add(session)
        self.scheduler.deployment_added(site.view, now)
        self.note(site)
        self.changed = True

    def gone(self, site: SimulatedDeployment, now: float) -> None:
        """The device is gone, and what it had was taken back."""
        session = self._sessions.pop(site, None)
        if session is not None:
            session.closed = True
        if self._elsewhere.pop(site.view.key, None) is not None:
            site.view.load = DeploymentLoad()
        self.scheduler.deployment_removed(site.view, now)
