"""One game day with real processes: a parent, a child gateway with an agent and an engine in each region."""

import asyncio
import re
import signal
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import replace
from itertools import count
from pathlib import Path

import aiohttp

from gateway.domain.scopes import AdminRole
from gateway.observability.audit.segments import DIRECTORY
from gateway.storage import Store, UsageGrouping
from gateway.tools.quickstart.processes import Child
from shared.process.ports import free_port
from tests.chaos.logs import defects_in
from tests.chaos.regions.game import MODEL, Figures, GameFindings, GamePlan, Told, ask
from tests.chaos.regions.places import Place, in_namespace, netem_works, on_loopback
from tests.gateway.observability.audit.logs import records
from tests.support.processes import START_S, Gateway, House, until

PROMISED = Figures(
    streams_go_on_s=20.0,
    killed_go_on_s=10.0,
    requests_wait_s=15.0,
    bound_refused_s=60.0,
    bound_back_s=30.0,
)
"""docs/regions.md, *Recovery times*: with default settings. What depends on ``[regions]`` is added."""

SLOTS = 16
BUSY_S = 10.0
"""In a short run going elsewhere is worth so much waiting: a machine that is busy is no reason to."""
_STATE = re.compile(r'^trunkline_region_state\{region="([^"]*)",state="([^"]*)"\} 1(?:\.0)?$', re.M)
_RTT = re.compile(r'^trunkline_agent_round_trip_seconds\{agent="([^"]*)"\} (\S+)$', re.M)


def promised(plan: GamePlan) -> Figures:
    """What a run with these settings may take."""
    held_s = plan.failback_s + (PROMISED.bound_back_s or 0.0)
    times = replace(PROMISED, failback_s=held_s + plan.ramp_s, up_s=held_s + plan.ramp_s + 10.0)
    if plan.outage_s < (PROMISED.bound_refused_s or 0.0):
        times = replace(times, bound_refused_s=None)
    return times if plan.kill else replace(times, killed_go_on_s=None)


class Game:
    """The processes of one run."""

    def __init__(self, plan: GamePlan, directory: Path, say: Callable[[str], None]) -> None:
        self.plan, self.directory, self.say = plan, directory, say
        self.findings = GameFindings(plan)
        self.places: dict[str, Place] = {}
        self.children: dict[str, Child] = {}
        self._ports: dict[str, int] = {}
        self._file = directory / "parent.toml"
        self._numbers = count(1)
        self._tasks: list[asyncio.Task[Told]] = []
        self._sent: list[Told] = []

    async def play(self) -> GameFindings:
        """From the first process to the last."""
        plan, findings = self.plan, self.findings
        netem = plan.namespaces and await asyncio.to_thread(netem_works)
        lines = "tc netem" if netem else "a delaying relay, no loss, for the kernel has no netem"
        findings.how = f"network namespaces, {lines}" if plan.namespaces else "loopback behind a proxy"
        async with AsyncExitStack() as stack:
            house = stack.enter_context(House(self.directory / "parent"))
            self.parent = await asyncio.to_thread(self._start_parent, house)
            key = self.parent.key("game", role=AdminRole.VIEWER)
            for place, (name, delay_s) in enumerate(plan.regions):
                directory, port = self.directory / name, self.parent.port
                made = (
                    in_namespace(directory, port, delay_s, place, netem=netem)
                    if plan.namespaces
                    else on_loopback(directory, port, delay_s)
                )
                self.places[name] = await stack.enter_async_context(made)
                await asyncio.to_thread(self._start_region, name)
            headers = {"authorization": f"Bearer {key}"}
            connector = aiohttp.TCPConnector(limit=0)
            self.session = await stack.enter_async_context(
                aiohttp.ClientSession(self.parent.url, headers=headers, connector=connector)
            )
            await self._wait("all regions are used", self._all_there)
            await self._steady()
            await self._shift()
            await self._cut()
            if plan.kill:
                await self._kill()
            findings.told += await asyncio.gather(*self._tasks)
            await asyncio.to_thread(self._read_books)
        findings.judge()
        if not plan.short:  # beside other tests a machine may be slow
            findings.judge_times(promised(plan))
        findings.wrong += [
            each for each in defects_in(self.directory / "parent") if "region_lost" not in each
        ]
        for line in findings.lines(promised(plan)):
            self.say(line)
        return findings

    # --- Processes ---

    def _start_parent(self, house: House) -> Gateway:
        prefix, environment = "TRUNKLINE_GATEWAY_", {}
        if self.plan.short:
            environment = {
                f"{prefix}DISPATCH__CONTINUE_AFTER_S": "1",
                f"{prefix}DISPATCH__FAILOVER_AFTER_S": "1",
            }
        self._file.write_text(self._settings())
        return house.gateway("--config", str(self._file), name="parent", environment=environment)

    def _settings(self, shifts: str = "[]") -> str:
        """The parent's."""
        plan = self.plan
        return (
            "[http]\nmetrics_public = true\n[regions]\nenabled = true\n"
            f"failback_s = {plan.failback_s}\nramp_s = {plan.ramp_s}\nshifts = {shifts}\n"
            f'price_s = {BUSY_S if plan.short else 0.0}\nhome = "{plan.regions[0][0]}"\n'
        )

    def _start_region(self, name: str) -> None:
        """A child gateway that joins, and its agent with an engine."""
        place, labels = self.places[name], {"region": name}
        house, token = place.house, self.parent.token(labels=labels)
        self._start_child(name, "--join", token)
        state = house.directory / "child-state"
        child = Gateway(self.children[name], 8700, state)
        parent_log = self.parent.child.log
        house.children.wait_until(
            lambda: (
                re.search(rf'agent_connected.*"{name}"|"{name}".*agent_connected', parent_log.read_text())
                is not None
            ),
            f"{name} has joined",
            START_S,
        )
        engine = house.engine("--model", MODEL)
        house.agent(
            child,
            engine.url,
            *("--slots", str(SLOTS), "--drain-s", "2"),
            name=f"gpu-{name}",
            dial=f"http://127.0.0.1:{self._port(name)}",
            environment={"TRUNKLINE_AGENT_CONTINUES": "chat=final_message"},
        )

    def _start_child(self, name: str, *more: str) -> None:
        place = self.places[name]
        listen = ("--listen", f"127.0.0.1:{self._port(name)}")
        state = ("--state", str(place.house.directory / "child-state"))
        self.children[name] = place.house.children.start(
            f"child-{len(list(place.house.directory.glob('child-*.log')))}",
            *("gateway", *listen, *state, "--uplink", place.dial, *more),
            environment={
                "TRUNKLINE_GATEWAY_UPLINK__NAME": name,
                "TRUNKLINE_GATEWAY_UPLINK__LABELS": f'{{"region": "{name}"}}',
            },
        )

    def _port(self, name: str) -> int:
        """Of the child, at its own host."""
        return self._ports.setdefault(name, 8700 if self.plan.namespaces else free_port())

    # --- What is played ---

    async def _steady(self) -> None:
        """All is well: the nearest has all of it, as far as it has room."""
        began = len(self._tasks)
        ends_s = time.monotonic() + self.plan.steady_s
        while time.monotonic() < ends_s:
            self._send(1, tokens=4)
            await asyncio.sleep(0.25)
        nearest = self.plan.regions[0][0]
        short = await asyncio.gather(*self._tasks[began:])
        near = sum(each.region == nearest for each in short)
        self.findings.nearest = near, len(short)
        if 2 * near < len(short):  # where the machine is busy some are better off elsewhere
            self.findings.wrong.append(f"{near} of {len(short)} at the nearest though that had room")

    async def _shift(self) -> None:
        """All is moved to another region and back, while the parent runs."""
        nearest, other = self.plan.regions[0][0], self.plan.regions[1][0]
        for shifts, region, code in (
            (f'[{{ to = "{other}", share = 1.0 }}]', other, "shifted"),
            ("[]", nearest, "nearest"),
        ):
            self._file.write_text(self._settings(shifts))
            self.parent.child.signal(signal.SIGHUP)
            ends_s, said = time.monotonic() + START_S, ("", "")
            while said != (region, code):
                assert time.monotonic() < ends_s, f"requests go to {said}, not to {region}"
                (told,) = await asyncio.gather(*self._send(1, tokens=2))
                said = await self._reason(told)

    async def _reason(self, told: Told) -> tuple[str, str]:
        """Where it went and why, as its record says."""
        async with self.session.get(f"/admin/requests/{told.id}") as answer:
            assert answer.status == 200, await answer.text()
            region = (await answer.json())["decisions"][0]["region"]
        return region["name"], region["code"]

    async def _cut(self) -> None:
        """The nearest is cut off while streams run there; then it comes back."""
        name, figures, findings = self.plan.regions[0][0], self.findings.figures, self.findings
        running = self._send(self.plan.streams)
        await self._wait("streams run", self._all_run)
        self.say(f"{name} is cut off, with {len(running)} streams")
        cut_s = time.monotonic()
        self.places[name].cut()
        asked = [self._send(1, tokens=4)[0] for _ in range(4)]
        bound: list[asyncio.Task[Told]] = []
        while time.monotonic() < cut_s + self.plan.outage_s or not await self._stands(name, "down"):
            assert time.monotonic() < cut_s + self.plan.outage_s + START_S, f"{name} is not down"
            await asyncio.sleep(0.5)
            asked += self._send(1, tokens=4)
            if len(bound) < 40:
                bound += self._send(1, tokens=4, bound=name)
        healed_s = time.monotonic()
        self.places[name].heal()
        self.say(f"{name} is back")
        told = await asyncio.gather(*running)
        if running:
            figures.streams_go_on_s = max(each.gap_s for each in told)
        waited = await asyncio.gather(*asked)
        figures.requests_wait_s = _longest(waited)
        said = await self._reason(waited[-1])
        if said[0] == name or said[1] != "failed_over":
            findings.wrong.append(f"the last request of the outage went to {said}")
        figures.bound_back_s = await self._until_answered(name, healed_s)
        refused = [each for each in await asyncio.gather(*bound) if each.refused_clearly]
        figures.bound_refused_s = min(((each.ended_s or 0.0) - cut_s for each in refused), default=None)
        figures.failback_s = await self._until_used(name, healed_s)
        await self._wait(f"{name} is used as before", lambda: self._stands(name, "up"))
        figures.up_s = time.monotonic() - healed_s

    async def _kill(self) -> None:
        """The child of the nearest is killed while streams run there, and started again."""
        name = self.plan.regions[0][0]
        running = self._send(self.plan.streams, tokens=self.plan.tokens // 4)
        await self._wait("streams run", self._all_run)
        self.say(f"the child of {name} is killed")
        self.children[name].signal(signal.SIGKILL)
        told = await asyncio.gather(*running)
        self.findings.figures.killed_go_on_s = max(each.gap_s for each in told)

    def _send(
        self, number: int, *, tokens: int | None = None, bound: str | None = None
    ) -> list[asyncio.Task[Told]]:
        """Send so many requests."""
        sent = []
        for _ in range(number):
            told = Told(next(self._numbers), tokens or self.plan.tokens, time.monotonic(), bound)
            self._sent.append(told)
            sent.append(asyncio.create_task(ask(self.session, told, self.plan.tokens_per_s)))
        self._tasks += sent
        return sent

    async def _until_answered(self, name: str, since_s: float) -> float:
        """How long it took until a request that is bound to the region was answered there."""
        while time.monotonic() < since_s + START_S:
            (told,) = await asyncio.gather(*self._send(1, tokens=2, bound=name))
            if told.right:
                return time.monotonic() - since_s
            await asyncio.sleep(0.25)
        raise AssertionError(f"nothing that is bound to {name} is answered")

    async def _until_used(self, name: str, since_s: float) -> float:
        """The same for one that others could have had."""
        while time.monotonic() < since_s + START_S:
            (told,) = await asyncio.gather(*self._send(1, tokens=2))
            if told.region == name:
                return time.monotonic() - since_s
            await asyncio.sleep(0.1)
        raise AssertionError(f"nothing goes to {name} by itself")

    # --- What the parent says ---

    async def _metrics(self) -> str:
        async with self.session.get("/metrics") as answer:
            return await answer.text()

    async def _standing(self, name: str) -> str | None:
        return dict(_STATE.findall(await self._metrics())).get(name)

    async def _stands(self, name: str, state: str) -> bool:
        return await self._standing(name) == state

    async def _all_run(self) -> bool:
        """Whether the streams that were sent last have begun."""
        return all(each.first_s is not None for each in self._sent[-self.plan.streams :])

    async def _all_there(self) -> bool:
        text = await self._metrics()
        self.findings.rtts_s = {name: float(rtt_s) for name, rtt_s in _RTT.findall(text)}
        up = {name for name, state in _STATE.findall(text) if state == "up"}
        names = {name for name, _ in self.plan.regions}
        return names <= up and names <= self.findings.rtts_s.keys()

    async def _wait(self, what: str, condition: Callable[[], Awaitable[bool]]) -> None:
        ends_s = time.monotonic() + START_S
        while not await condition():
            assert time.monotonic() < ends_s, what
            await asyncio.sleep(0.1)

    def _read_books(self) -> None:
        """Usage is written once a second."""
        wanted = sum(each.tokens for each in self.findings.told if each.right)

        def booked() -> int:
            with Store.open(self.parent.state) as store:
                totals = store.usage.totals(UsageGrouping.KEY)
            return sum(each.amount.completion_tokens for each in totals)

        try:
            until("usage is booked", lambda: booked() == wanted, 15.0)
        except AssertionError:
            pass  # the judgement says it
        self.findings.tokens_booked = booked()
        ids = {each.id for each in self.findings.told}
        until("requests are in the audit log", lambda: ids <= self._audited().keys())
        self.findings.ran = self._audited()

    def _audited(self) -> dict[str, list[str]]:
        """Where requests ran, by id."""
        lines = records(self.parent.state / DIRECTORY)
        return {line["id"]: list(line.get("ran", ())) for line in lines if line["kind"] == "request"}


def _longest(told: list[Told]) -> float | None:
    waits = [each.first_s - each.began_s for each in told if each.first_s is not None]
    return max(waits, default=None)


async def run_regions(plan: GamePlan, directory: Path, say: Callable[[str], None]) -> GameFindings:
    """Play it; logs lie in ``directory``."""
    return await Game(plan, directory, say).play()
