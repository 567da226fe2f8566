"""Does to the house what the schedule says, and undoes it; writes down when in the journal."""

import asyncio
import signal
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable

from tests.chaos.house import ChaosHouse
from tests.chaos.journal import Journal
from tests.chaos.schedule import EVERYBODY, GATEWAY, STATE_KINDS, Fault, Kind, Schedule
from tests.chaos.state_faults import delete_database, start_second_gateway
from tests.support.proxy import FaultyProxy, Link, Side
from tests.support.scripted_engine import Trouble

_TROUBLES = {
    Kind.ENGINE_ERROR: Trouble.ERROR,
    Kind.ENGINE_MEMORY: Trouble.MEMORY,
    Kind.ENGINE_BUSY: Trouble.BUSY,
    Kind.ENGINE_HANG: Trouble.HANG,
    Kind.ENGINE_STALL: Trouble.STALL,
    Kind.ENGINE_CUT: Trouble.CUT,
    Kind.ENGINE_UNENDED: Trouble.UNENDED,
    Kind.ENGINE_MALFORMED: Trouble.MALFORMED,
    Kind.ENGINE_UNWELL: Trouble.UNWELL,
    Kind.ENGINE_SILENT: Trouble.SILENT,
    Kind.ENGINE_REFUSE: Trouble.REFUSE,
    Kind.BLACKOUT: Trouble.REFUSE,
}
_STOP_S = 30.0


class Injector:
    """Carries a schedule out. :attr:`gateway_away` tells clients that knocking is in vain."""

    def __init__(self, house: ChaosHouse, journal: Journal, clock: Callable[[], float]) -> None:
        """``clock`` gives the seconds since the start of the run."""
        self.gateway_away = False
        self.unclean: list[str] = []
        """Processes that ended by themselves, or not when asked to, and what did not hold of the state."""
        self.deletions = 0
        """Of the gateway's database."""
        self._house = house
        self._journal = journal
        self._clock = clock
        self._troubles: defaultdict[str, list[Trouble]] = defaultdict(list)
        self._orders: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)

    async def run(self, schedule: Schedule) -> None:
        """Returns when the last fault is undone."""
        async with asyncio.TaskGroup() as tasks:
            for fault in schedule.faults:
                await asyncio.sleep(max(0.0, fault.at_s - self._clock()))
                tasks.create_task(self.strike(fault))

    async def strike(self, fault: Fault) -> None:
        """One fault from its beginning to its end."""
        entry = self._journal.begin(fault, self._clock())
        try:
            if fault.kind.startswith("link:"):
                await self._link(fault)
            elif fault.kind in (Kind.AGENT_KILL, Kind.AGENT_DRAIN):
                await self._agent(fault)
            elif fault.kind in (Kind.GATEWAY_KILL, Kind.GATEWAY_DRAIN):
                await self._gateway(fault)
            elif fault.kind in STATE_KINDS:
                await self._state(fault)
            elif fault.kind is Kind.ENGINE_FREEZE:
                await self._freeze(fault)
            else:
                await self._engines(fault)
        finally:
            entry.until_s = self._clock()

    # --- links

    async def _link(self, fault: Fault) -> None:
        names = list(self._house.proxies) if fault.target == EVERYBODY else [fault.target]
        await asyncio.gather(*(self._break(self._house.proxies[name], fault) for name in names))

    async def _break(self, proxy: FaultyProxy, fault: Fault) -> None:
        lasting: dict[Kind, Callable[[], Awaitable[None]]] = {
            Kind.LINK_DELAY: lambda: self._shaped(proxy, Link(delay_s=fault.amount), fault.lasts_s),
            Kind.LINK_NARROW: lambda: self._shaped(proxy, Link(rate_bytes_per_s=fault.amount), fault.lasts_s),
            Kind.LINK_STALL: lambda: self._stalled(proxy, fault.lasts_s),
            Kind.LINK_HALF_AGENT: lambda: proxy.half_open(Side.CLIENT),
            Kind.LINK_HALF_GATEWAY: lambda: proxy.half_open(Side.SERVER),
        }
        amount = int(fault.amount)
        match fault.kind:
            case Kind.LINK_CUT if not amount:
                await proxy.cut()
            case Kind.LINK_CUT:
                proxy.cut_within(amount, amount)
            case Kind.LINK_TRUNCATE:
                proxy.truncate(amount, amount)
            case Kind.LINK_CORRUPT:
                proxy.corrupt()
            case Kind.LINK_VANISH:
                proxy.vanish()
            case kind:
                await lasting[kind]()

    async def _shaped(self, proxy: FaultyProxy, link: Link, lasts_s: float) -> None:
        proxy.reshape(link)
        await asyncio.sleep(lasts_s)
        proxy.reshape(Link())

    async def _stalled(self, proxy: FaultyProxy, lasts_s: float) -> None:
        proxy.stall()
        await asyncio.sleep(lasts_s)
        proxy.resume()

    # --- workers

    async def _agent(self, fault: Fault) -> None:
        agent = self._house.agents[fault.target]
        if agent.ended(0) is not None:
            self.unclean.append(f"{agent.name} had ended by itself: {agent.tail()}")
        elif fault.kind is Kind.AGENT_KILL:
            agent.signal(signal.SIGKILL)
        else:
            agent.signal(signal.SIGTERM)
        await self._ended(fault)
        await asyncio.sleep(fault.lasts_s)
        self._house.start_agent(fault.target)

    async def _ended(self, fault: Fault) -> None:
        """Wait until the process that was told to stop has."""
        child = self._house.gateway if fault.target == "gateway" else self._house.agents[fault.target]
        deadline_s = time.monotonic() + _STOP_S
        while child.ended(0) is None:
            if time.monotonic() > deadline_s:
                self.unclean.append(f"{child.name} did not stop within {_STOP_S:.0f} s of SIGTERM")
                break
            await asyncio.sleep(0.02)
        await asyncio.to_thread(child.stop)

    async def _engines(self, fault: Fault) -> None:
        posts = self._house.town.of_model(fault.target) if fault.kind is Kind.BLACKOUT else ()
        names = [post.name for post in posts] or [fault.target]
        trouble = _TROUBLES[fault.kind]
        for name in names:
            self._troubles[name].append(trouble)
        await asyncio.gather(*(self._tell(name) for name in names))
        await asyncio.sleep(fault.lasts_s)
        for name in names:
            self._troubles[name].remove(trouble)
        await asyncio.gather(*(self._tell(name) for name in names))

    async def _freeze(self, fault: Fault) -> None:
        """It takes connections and bytes as far as the system does, and answers nothing: no order either."""
        async with self._orders[fault.target]:
            child = self._house.engines[fault.target].child
            child.signal(signal.SIGSTOP)
            try:
                await asyncio.sleep(fault.lasts_s)
            finally:
                child.signal(signal.SIGCONT)

    async def _tell(self, name: str) -> None:
        """Tell an engine the newest of its troubles."""
        async with self._orders[name]:
            trouble = self._troubles[name][-1] if self._troubles[name] else Trouble.NONE
            await asyncio.to_thread(self._house.engines[name].suffer, trouble)

    # --- the gateway

    async def _state(self, fault: Fault) -> None:
        """Never while the gateway is away: then a second one would be the first."""
        async with self._orders[GATEWAY]:
            if fault.kind is Kind.GATEWAY_SECOND:
                self.unclean += await start_second_gateway(self._house)
                return
            self.deletions += 1
            self.unclean += await delete_database(self._house, fault.lasts_s, self._restart_after_deletion)

    async def _restart_after_deletion(self) -> None:
        """In the journal as what it is: before it no request may feel that the database is gone."""
        drain = Fault(self._clock(), Kind.GATEWAY_DRAIN, GATEWAY)
        entry = self._journal.begin(drain, self._clock())
        try:
            await self._restart(drain)
        finally:
            entry.until_s = self._clock()

    async def _gateway(self, fault: Fault) -> None:
        async with self._orders[GATEWAY]:
            await self._restart(fault)

    async def _restart(self, fault: Fault) -> None:
        gateway = self._house.gateway
        self.gateway_away = True
        gateway.signal(signal.SIGKILL if fault.kind is Kind.GATEWAY_KILL else signal.SIGTERM)
        await self._ended(fault)
        await asyncio.sleep(fault.lasts_s)
        self._house.start_gateway()
        await self._house.until_serving()
        self.gateway_away = False
