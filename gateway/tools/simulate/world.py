"""The simulation: traffic, gateways that decide, and engines, under one virtual clock.

A request arrives, waits in the line, is given to a deployment by the policy, reaches it half a round trip
later, waits and runs in its engine, and what it produces is seen half a round trip after that. Events of
the same instant happen in the order in which they were planned, so equal input gives equal output.
"""

import random
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from gateway.scheduling.queue.foreign import given_elsewhere
from gateway.tools.simulate.calendar import Calendar
from gateway.tools.simulate.engine import NEVER, EngineRun
from gateway.tools.simulate.fleet import SimulatedDevice
from gateway.tools.simulate.gateway import SimulatedGateway, SimulatedRequest
from gateway.tools.simulate.inputs import Job
from gateway.tools.simulate.lent_slots import LentSlots
from gateway.tools.simulate.queues import FairQueue
from gateway.tools.simulate.tally import Figures, PolicyTally, TimeWindows
from gateway.tools.simulate.told_others import ToldOthers
from shared.protocol.limits import OTHERS_EVERY_S

REPAIR_S = 60.0

TELL_S = 1.0
"""How often gateways tell each other what they gave to tenants."""

WINDOW_S = 10.0
"""How far from each other the devices' use and the tenants' shares are looked at."""


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
    others_every_s: float | None = OTHERS_EVERY_S
    """How often, at most, an agent tells a gateway what it runs for the others; None: never."""


class SimulatedWorld:
    """One run of one policy; :meth:`run` is called once."""

    def __init__(
        self,
        calendar: Calendar,
        gateways: Sequence[SimulatedGateway],
        devices: Sequence[SimulatedDevice],
        lent: Sequence[LentSlots],
        tally: PolicyTally,
        rules: Rules,
        *,
        seed: int,
    ) -> None:
        """``lent`` are the slots of each device where the gateways are several and are lent slots, else
        empty."""
        self._calendar = calendar
        self._gateways = gateways
        self._devices = devices
        self._lent = dict(zip(devices, lent, strict=True)) if lent else {}
        self._tally = tally
        self._rules = rules
        self._chance = random.Random(seed)
        self._doors = random.Random(f"{seed} gateways")
        self._flights: dict[int, SimulatedRequest] = {}
        self._slots_up = 0
        self._arrivals_over = False
        for gateway in gateways:
            gateway.send = self._send
        self._told: dict[SimulatedDevice, ToldOthers] = {}
        every_s = rules.others_every_s
        if lent and every_s is not None:
            self._told = {each: ToldOthers(calendar, each, list(gateways), every_s) for each in devices}
        if lent:
            queues = [gateway.queue for gateway in gateways if isinstance(gateway.queue, FairQueue)]
            for queue in queues:
                queue.share()
            calendar.plan(TELL_S, self._tell_work, queues)
        for device in devices:
            self._up(device, 0.0)

    def run(self, jobs: Iterator[Job]) -> Figures:
        """Every job to its end. Raises whatever ``jobs`` raises."""
        now = span_s = 0.0
        calendar, busy_s, windows = (
            self._calendar,
            [0.0] * len(self._devices),
            TimeWindows(len(self._devices)),
        )
        calendar.plan(WINDOW_S, self._end_window, windows)
        job = next(jobs, None)
        while job is not None or self._flights:
            if job is not None and (not calendar or job.at_s <= calendar.next_s):
                self._pass_time(now, job.at_s)
                calendar.now_s = now = span_s = job.at_s
                self._arrive(job, now)
                job = next(jobs, None)
                if job is None:
                    busy_s = self._busy_s(now)
                    self._arrivals_over = True
            else:
                assert calendar, "requests wait, and the policy gives them to nobody"
                self._pass_time(now, calendar.next_s)
                happen, subject = calendar.take()
                now = calendar.now_s
                happen(subject, now)
            for gateway in self._gateways:
                if gateway.changed:
                    gateway.decide(now)
        self._tally.demands = sum(gateway.demands for gateway in self._gateways)
        shares = [each / span_s if span_s else 0.0 for each in busy_s]
        return Figures(self._tally, span_s, now, shares, windows.variation, len(self._gateways))

    # --- Requests ---

    def _arrive(self, job: Job, now: float) -> None:
        tally = self._tally
        tally.requests += 1
        gateway = self._gateway_of(job)
        if not gateway.fits_somewhere(job) or len(self._flights) >= self._rules.max_requests:
            tally.rejected += 1
            return
        number = tally.requests
        flight = self._flights[number] = gateway.arrive(number, job, now)
        wait_s = self._rules.max_wait_s
        if job.deadline_s is not None:
            wait_s = min(wait_s, job.deadline_s)
        if wait_s < NEVER:
            self._calendar.plan(now + wait_s, self._give_up, flight)

    def _gateway_of(self, job: Job) -> SimulatedGateway:
        """Where its client's connection is: a session stays at one gateway, other requests come to any."""
        gateways = self._gateways
        if len(gateways) == 1:
            return gateways[0]
        if job.session_key:
            return gateways[zlib.crc32(job.session_key.encode()) % len(gateways)]
        return self._doors.choice(gateways)

    def _give_up(self, flight: SimulatedRequest, now: float) -> None:
        """It has waited as long as it may, unless it was given to a deployment."""
        if flight.queued_s is None:
            flight.gateway.give_up(flight, now)
            del self._flights[flight.run.number]
            self._tally.rejected += 1

    def _send(self, flight: SimulatedRequest, now: float) -> None:
        """A gateway has given it to a deployment."""
        site = flight.site
        assert site is not None
        self._tally.opens += 1
        self._tally.fairness.served(flight.item.tenant, flight.item.work)
        self._calendar.plan(now + site.one_way_s + site.device.fixed_s, self._reach, flight)

    def _reach(self, flight: SimulatedRequest, now: float) -> None:
        """It comes to its deployment."""
        site = flight.site
        assert site is not None
        device = site.device
        if flight.epoch != device.epoch:
            self._lose(flight, now)
            return
        lent = self._lent.get(device)
        if lent is not None and not lent.enter(site, now):
            self._tally.opens_refused += 1
            self._calendar.plan(now + site.one_way_s, self._refused, flight)
            return
        flight.entered = True
        if device in self._told:
            self._told[device].began(flight, now)
        if site.view.loaded:
            self._submit(device, flight.run, now)
            return
        device.held.append(flight.run)
        if len(device.held) == 1:
            self._calendar.plan(now + device.engine.pace.load_s, self._loaded, (device, device.epoch))

    def _refused(self, flight: SimulatedRequest, now: float) -> None:
        """Its gateway hears that there was no slot for it any more."""
        if flight.queued_s == flight.placed_s - flight.run.arrived_s:
            flight.queued_s = None  # it has waited for nothing so far
        self._tally.fairness.served(flight.item.tenant, -flight.item.work)
        flight.gateway.take_back(flight, now)

    def _submit(self, device: SimulatedDevice, run: EngineRun, now: float) -> None:
        device.engine.submit(run, now)
        device.report()
        self._plan_wake(device)

    def _wake(self, device: SimulatedDevice, now: float) -> None:
        engine = device.engine
        if engine.wake_s != now:
            return
        woken = engine.wake(now)
        device.report()
        self._plan_wake(device)
        told = self._told.get(device)
        for run in woken.first:
            flight = self._flights[run.number]
            assert flight.site is not None
            if told is not None:
                told.first_token(flight)
            flight.client_first_s = now + flight.site.one_way_s
            self._calendar.plan(flight.client_first_s, self._see_first, flight)
        lent = self._lent.get(device)
        for run in woken.finished:
            flight = self._flights[run.number]
            assert flight.site is not None
            if lent is not None:
                lent.leave(flight.site, now)
            if told is not None:
                told.ended(flight)
            self._calendar.plan(now + flight.site.one_way_s, self._done, flight)

    def _see_first(self, flight: SimulatedRequest, now: float) -> None:
        flight.gateway.see_first(flight, now)

    def _done(self, flight: SimulatedRequest, now: float) -> None:
        run, first_s = flight.run, flight.client_first_s
        assert first_s is not None
        flight.gateway.done(flight, now)
        del self._flights[run.number]
        tally = self._tally
        tally.preemptions += run.preemptions
        tally.restarts += run.restarts
        ttft_s, queued_s = first_s - run.arrived_s, flight.queued_s or 0.0
        tally.add_completed(run.job, ttft_s, now - run.arrived_s, run.cached_tokens, queued_s)

    # --- Devices ---

    def _up(self, device: SimulatedDevice, now: float) -> None:
        if device in self._lent:
            self._lent[device].begin(now)
        if device in self._told:
            self._told[device].begin()
        self._slots_up += device.slots
        for gateway, site in zip(self._gateways, device.seen, strict=True):
            gateway.came(site, now)
        if self._rules.mtbf_s < NEVER:
            self._calendar.plan(now + self._chance.expovariate(1 / self._rules.mtbf_s), self._fail, device)

    def _fail(self, device: SimulatedDevice, now: float) -> None:
        """It is gone, and all it had."""
        device.epoch += 1
        device.planned_s = NEVER
        self._slots_up -= device.slots
        if device in self._lent:
            self._lent[device].end()
        if device in self._told:
            self._told[device].end()
        for gateway, site in zip(self._gateways, device.seen, strict=True):
            site.view.usable = False
            gateway.note(site)
        lost, device.held = [*device.engine.crash(now), *device.held], []
        for run in lost:
            self._lose(self._flights[run.number], now)
        device.report()
        for gateway, site in zip(self._gateways, device.seen, strict=True):
            gateway.gone(site, now)
        back_s = now + self._rules.repair_s + device.engine.pace.load_s
        self._calendar.plan(back_s, self._repaired, device)

    def _repaired(self, device: SimulatedDevice, now: float) -> None:
        self._up(device, now)
        self._loaded((device, device.epoch), now)

    def _loaded(self, load: tuple[SimulatedDevice, int], now: float) -> None:
        """Its model is there, unless the device was lost meanwhile."""
        device, epoch = load
        if epoch != device.epoch:
            return
        for gateway, site in zip(self._gateways, device.seen, strict=True):
            site.view.loaded = True
            gateway.scheduler.loaded(site.view, device.engine.pace.load_s)
        held, device.held = device.held, []
        for run in held:
            self._submit(device, run, now)

    def _lose(self, flight: SimulatedRequest, now: float) -> None:
        """Its deployment is gone: it waits for another, which goes on where its answer broke off."""
        flight.run.restarts += 1
        flight.gateway.take_back(flight, now)

    # --- Time ---

    def _tell_work(self, queues: Sequence[FairQueue], now: float) -> None:
        """Each gateway hears what the others gave to each tenant."""
        elsewhere = given_elsewhere([queue.take_given() for queue in queues])
        for queue, told in zip(queues, elsewhere, strict=True):
            queue.note_elsewhere(told, now)
        self._calendar.plan(now + TELL_S, self._tell_work, queues)

    def _pass_time(self, before_s: float, now: float) -> None:
        """What was so from ``before_s`` until ``now``: slots that nobody used while requests waited."""
        if now > before_s:
            waiting = sum(len(gateway.queue) for gateway in self._gateways)
            if waiting:
                idle = self._slots_up - sum(gateway.in_flight for gateway in self._gateways)
                if idle > 0:
                    self._tally.idle_wanted_s += min(idle, waiting) * (now - before_s)

    def _busy_s(self, now: float) -> list[float]:
        return [device.engine.busy_until(now) for device in self._devices]

    def _end_window(self, windows: TimeWindows, now: float) -> None:
        if not self._arrivals_over:
            windows.end(self._busy_s(now))
            self._tally.fairness.end({tenant for each in self._gateways for tenant in each.queue.tenants()})
            self._calendar.plan(now + WINDOW_S, self._end_window, windows)

    def _plan_wake(self, device: SimulatedDevice) -> None:
        wake_s = device.engine.wake_s
        if wake_s != device.planned_s:
            device.planned_s = wake_s
            if wake_s < NEVER:
                self._calendar.plan(wake_s, self._wake, device)
