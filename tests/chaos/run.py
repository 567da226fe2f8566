"""One run from the first process to the report."""

import asyncio
import resource
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from time import monotonic

from tests.chaos.clients import PATIENCE_S
from tests.chaos.faults import Injector
from tests.chaos.house import ChaosHouse
from tests.chaos.journal import Journal
from tests.chaos.load import Load
from tests.chaos.logs import defects_in
from tests.chaos.oracle import Oracle
from tests.chaos.outcome import Outcome
from tests.chaos.peer.house import PeerHouse
from tests.chaos.report import Report, Tally
from tests.chaos.sampling import Sampler
from tests.chaos.schedule import Schedule, draw
from tests.chaos.settle import Proof, leaks_of
from tests.chaos.state_faults import DELETION_ERRORS
from tests.chaos.town import Town, build_town


@dataclass(frozen=True, slots=True)
class Plan:
    """What a run is to be."""

    seed: int
    seconds: float
    rate_per_s: float = 60.0
    demo: bool = True
    small: bool = False
    """One model with three agents, for a test that must be short."""
    restarts: bool = True
    faults: bool = True
    worker_every_s: float = 2.5
    short_budgets: bool = True
    """The gateway's budgets of time are a few seconds; else its defaults."""
    peer: bool = False
    """SSH tunnels and nginx in the place of agents and gateway."""

    @property
    def town(self) -> Town:
        return build_town(demo=self.demo, small=self.small)

    def schedule(self) -> Schedule:
        """What goes wrong, and when."""
        town = self.town
        if not self.faults:
            return Schedule(self.seed, self.seconds, ())
        return draw(town, self.seed, self.seconds, restarts=self.restarts, worker_every_s=self.worker_every_s)


async def run(plan: Plan, directory: Path, say: Callable[[str], None]) -> Report:
    """Carry ``plan`` out; logs and state of all processes lie in ``directory``."""
    schedule = plan.schedule()
    town = plan.town
    budgets = "short" if plan.short_budgets else "default"
    faults = f"{len(schedule.faults)} faults, schedule {schedule.digest}"
    say(f"seed {plan.seed}, {budgets} budgets: {faults}; logs in {directory}")
    async with (PeerHouse if plan.peer else ChaosHouse)(
        directory, town, short_budgets=plan.short_budgets
    ) as house:
        began_s = monotonic()

        def clock() -> float:
            return monotonic() - began_s

        journal = Journal(town)
        tally = Tally(Oracle(journal), journal)
        injector = Injector(house, journal, clock)
        sampler = Sampler(house, clock)
        proofs: list[Proof] = []

        def finished(outcome: Outcome) -> None:
            tally.add(outcome)
            for proof in proofs:
                proof.saw(outcome)

        async with Load(house, plan.seed, clock, finished, lambda: injector.gateway_away) as load:
            sampling = asyncio.create_task(sampler.run())
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(injector.run(schedule))
                tasks.create_task(load.run(plan.rate_per_s, plan.seconds))
                tasks.create_task(_tell(say, clock, plan.seconds, tally, load))
                if plan.demo:
                    tasks.create_task(load.run_demo(plan.seconds))
            wall_s, in_time = clock(), tally.requests
            leaks: list[str] = []
            if plan.peer:
                await load.until_idle(PATIENCE_S)
            else:
                proofs.append(Proof(house, load))
                leaks = await leaks_of(house, load, proofs[0], plan.seed)
            died = house.died()
            sampler.look()
            sampling.cancel()
    expected = dict.fromkeys(DELETION_ERRORS, injector.deletions)
    return Report(
        schedule=schedule,
        tally=tally,
        wall_s=wall_s,
        in_time=in_time,
        leaks=leaks,
        unclean=[*injector.unclean, *died, *([] if plan.peer else defects_in(directory, expected))],
        drifts=sampler.drifts(plan.seconds / 2 + 10),
        left_out=load.left_out,
        served=dict(proofs[0].served) if proofs else {},
        cpu_s=sampler.cpu_s() | {"this program": sum(resource.getrusage(resource.RUSAGE_SELF)[:2])},
        faults_struck=len(journal.entries),
    )


async def _tell(
    say: Callable[[str], None], clock: Callable[[], float], until_s: float, tally: Tally, load: Load
) -> None:
    """How it goes, every ten seconds."""
    while clock() < until_s:
        await asyncio.sleep(min(10.0, max(0.1, until_s - clock())))
        say(
            f"{clock():6.0f} s  {tally.requests} requests ({tally.requests / clock():.1f}/s), "
            f"{load.in_flight} in flight, defects {tally.defects or 'none'}"
        )
