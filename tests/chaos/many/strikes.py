"""Does to the house what the plan says and undoes it, and writes down when."""

import asyncio
import os
import signal
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from time import monotonic

import psutil  # type: ignore[import-untyped]
from redis.asyncio import Redis

from tests.chaos.many.house import AGENTS, CLIENTS, ManyHouse
from tests.chaos.many.plan import OF_WORKERS, ManyPlan, Strike, Struck

BACK_S = 45.0
"""After that nobody waits for what does not come back."""
_LOOK_S = 0.1
"""Between two looks at a gateway; each is answered by all of its processes, which have other things to do."""


@dataclass(slots=True)
class StruckEntry:
    """One fault as it went. Times are seconds since the start of the run."""

    struck: Struck
    began_s: float
    until_s: float = float("inf")
    """When it was undone."""
    whole_s: float = float("inf")
    """When the gateways that it struck had their agents, store and limits again, or nobody looked on."""
    whole: bool = True
    """False: they had not, while somebody looked."""

    def overlaps(self, from_s: float, until_s: float, margin_s: float = 0.0) -> bool:
        return self.began_s <= until_s and from_s <= self.until_s + margin_s

    def __str__(self) -> str:
        whose = "" if self.struck.gateway < 0 else f" g{self.struck.gateway}"
        back = "whole" if self.whole else "not whole until"
        return f"{self.struck.kind}{whose} {self.began_s:.2f}–{self.until_s:.2f}, {back} {self.whole_s:.2f}"


@dataclass(slots=True)
class Striker:
    """Carries a plan out."""

    house: ManyHouse
    clock: Callable[[], float]
    entries: list[StruckEntry] = field(default_factory=list)
    away: set[int] = field(default_factory=set)
    """Gateways that are known to be gone; clients turn to the others."""
    _locks: defaultdict[int, asyncio.Lock] = field(default_factory=lambda: defaultdict(asyncio.Lock))
    """Held while the processes of a gateway are struck: a roll lasts as long as it lasts."""

    async def run(self, plan: ManyPlan) -> None:
        """Returns when all is undone and whole again."""
        async with asyncio.TaskGroup() as tasks:
            for struck in plan.strikes():
                await asyncio.sleep(max(0.0, struck.at_s - self.clock()))
                tasks.create_task(self.strike(struck))

    async def strike(self, struck: Struck) -> StruckEntry:
        """One fault, to the time when everything is whole again."""
        entry = StruckEntry(struck, self.clock())
        self.entries.append(entry)
        try:
            if struck.kind.startswith("parted:"):
                await self._part(struck)
            elif struck.gateway >= 0:
                async with self._locks[struck.gateway]:
                    entry.began_s = self.clock()
                    await self._gateway(struck)
            else:
                await self._server(struck)
        finally:
            entry.until_s = self.clock()
        gateways = range(self.house.count) if struck.gateway < 0 else (struck.gateway,)
        deadline_s = monotonic() + BACK_S
        while not (whole := await self._are_whole(gateways)) and monotonic() < deadline_s:  # noqa: ASYNC110
            await asyncio.sleep(_LOOK_S)
        entry.whole_s, entry.whole = self.clock(), whole
        return entry

    async def _are_whole(self, gateways: Iterable[int]) -> bool:
        return all([await self.house.is_whole(each) for each in gateways])

    async def _part(self, struck: Struck) -> None:
        whole = struck.kind is not Strike.PART_AGENT
        proxy = self.house.paths[struck.kind if whole else AGENTS, struck.gateway]
        agent = struck.member % len(self.house.agents)
        proxy.part(None if whole else lambda port: self.house.agent_has_port(agent, port))
        try:
            await asyncio.sleep(struck.lasts_s)
        finally:
            proxy.heal()

    async def _gateway(self, struck: Struck) -> None:
        gateway = self.house.gateways[struck.gateway]
        if struck.kind is Strike.GATEWAY_PAUSE:
            self.house.signal_all(struck.gateway, signal.SIGSTOP)
            try:
                await asyncio.sleep(struck.lasts_s)
            finally:
                self.house.signal_all(struck.gateway, signal.SIGCONT)
            return
        if struck.kind in OF_WORKERS:
            await self._worker(struck)
            return
        self.away.add(struck.gateway)
        gateway.signal(signal.SIGKILL)
        paths = [self.house.paths[pair, struck.gateway] for pair in (AGENTS, CLIENTS)]
        await asyncio.gather(*(path.go_away() for path in paths))
        await asyncio.to_thread(gateway.stop)
        await asyncio.sleep(struck.lasts_s)
        self.house.start_gateway(struck.gateway)
        for path in paths:
            path.come_back()
        while not await self.house.metrics(struck.gateway):
            if self.house.gateways[struck.gateway].ended(0) is not None:  # its store was away: a service
                self.house.start_gateway(struck.gateway)  # manager starts it again
            await asyncio.sleep(0.1)
        self.away.discard(struck.gateway)

    async def _worker(self, struck: Struck) -> None:
        house, gateway = self.house, struck.gateway
        pids = await self._workers_there(gateway)
        if not pids:  # its store is away
            return
        if struck.kind is Strike.WORKERS_ROLL:
            said = house.rolls(gateway)
            house.gateways[gateway].signal(signal.SIGUSR2)
            deadline_s = monotonic() + BACK_S
            while house.rolls(gateway) == said and monotonic() < deadline_s:  # noqa: ASYNC110
                await asyncio.sleep(0.1)
            return
        pid = pids[struck.member % len(pids)]
        os.kill(pid, signal.SIGKILL if struck.kind is Strike.WORKER_KILL else signal.SIGSTOP)
        if struck.kind is Strike.WORKER_PAUSE:
            try:
                await asyncio.sleep(struck.lasts_s)
            finally:
                os.kill(pid, signal.SIGCONT)

    async def _workers_there(self, gateway: int) -> list[int]:
        """The processes of its workers, when all are there; none if that is not so in time."""
        deadline_s = monotonic() + BACK_S
        while monotonic() < deadline_s:
            pids = self.house.worker_pids(gateway)
            if len(pids) == self.house.workers and all(map(_lives, pids)):
                return pids
            await asyncio.sleep(0.1)
        return []

    async def _server(self, struck: Struck) -> None:
        if struck.kind is Strike.SHARED_FLUSH:
            client = Redis.from_url(self.house.shared.url)
            await client.flushall()
            await client.aclose()
            return
        server = self.house.store if struck.kind.startswith("PostgreSQL") else self.house.shared
        if "paused" in struck.kind:
            await asyncio.to_thread(server.pause)
            try:
                await asyncio.sleep(struck.lasts_s)
            finally:
                await asyncio.to_thread(server.go_on)
            return
        await asyncio.to_thread(server.kill)
        await asyncio.sleep(struck.lasts_s)
        await asyncio.to_thread(server.start)


def _lives(pid: int) -> bool:
    """One that was killed may not have been noticed yet."""
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False
