"""Streams are moved away from an agent at both processes of ``trunkline gateway --workers 2``, whichever of
them is asked, however the slots of the other agents are lent to them."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from functools import partial

import aiohttp
import pytest

from tests.integration.asking import CHAT, HeardStream, chat
from tests.integration.conftest import _HOUSES
from tests.integration.workers import WorkersSite, workers_of
from tests.support.processes import Engine, Gateway, House, answer_to, until

CONTINUES = {"TRUNKLINE_AGENT_CONTINUES": "chat=final_message"}
TOKENS = 30


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WorkersSite]:
    with House(tmp_path_factory.mktemp("moving-workers")) as house:
        _HOUSES.append(house)
        yield workers_of(house, None)
    _HOUSES.remove(house)


@dataclass
class Heard(HeardStream):
    """A client with one connection, so all that it asks is asked of one worker, and what it has heard."""

    number: int = field(kw_only=True)
    client: aiohttp.ClientSession = field(kw_only=True)
    worker: str = ""

    @property
    def prompt(self) -> str:
        return f"question {self.number}"

    async def ask(self, model: str) -> None:
        """A stream that goes on by a token when its engine is told so."""
        messages = [{"role": "user", "content": self.prompt}]
        script = {"stepped": True}
        body = chat(model=model, messages=messages, stream=True, max_tokens=TOKENS, script=script)
        async with self.client.post(CHAT, json=body) as response:
            assert response.status == 200, await response.text()
            await self.read(response)


async def eventually(what: str, condition: Callable[[], object]) -> None:
    await asyncio.to_thread(until, what, condition, 60.0)


async def clients_of(site: WorkersSite, stack: AsyncExitStack, wanted: tuple[int, int]) -> list[Heard]:
    """So many clients at each worker. The kernel gives connections to workers as it likes, so more are opened
    until there are enough."""
    found: dict[str, list[Heard]] = {}
    names: list[str] = []
    number = 0
    async with site.client("operator") as operator, operator.get("/admin/processes") as response:
        names = sorted(each["process"] for each in (await response.json())["processes"])
    while [len(found.get(name, ())) >= count for name, count in zip(names, wanted, strict=True)] != [
        True,
        True,
    ]:
        number += 1
        assert number < 400, "the kernel gives all connections to one worker"
        connector = aiohttp.TCPConnector(limit=1)
        headers = {"authorization": f"Bearer {site.keys['operator']}"}
        client = await stack.enter_async_context(
            aiohttp.ClientSession(site.url, connector=connector, headers=headers)
        )
        asked = f"whose-{number}"
        async with client.get("/admin/processes", headers={"x-request-id": asked}) as response:
            assert response.status == 200
        lines: list[str] = []

        def logged(asked: str = asked, lines: list[str] = lines) -> bool:
            lines[:] = [each["process"] for each in site.events("request") if each["id"] == asked]
            return bool(lines)

        await eventually("it is logged", logged)
        found.setdefault(lines[0], []).append(Heard(number=number, client=client, worker=lines[0]))
    return [each for name, count in zip(names, wanted, strict=True) for each in found[name][:count]]


async def offered(site: WorkersSite, model: str, slots: int) -> None:
    """Return once both workers together have so many slots for the model."""
    async with site.client("operator") as client, asyncio.timeout(60):
        while True:
            async with client.get("/admin/models") as response:
                models = {each["id"]: each for each in (await response.json())["models"]}
            if model in models and models[model]["slots"] == slots:
                return
            await asyncio.sleep(0.05)


async def known(model: str, heard: list[Heard]) -> None:
    """Return once the worker of each of these clients has the model: an agent's slots are all of the first
    worker that it has reached until it has reached the other."""
    async with asyncio.timeout(60):
        for each in heard:
            while True:
                async with each.client.get("/v1/models") as response:
                    if model in [offer["id"] for offer in (await response.json())["data"]]:
                        break
                await asyncio.sleep(0.05)


def runs(engine: Engine, count: int) -> bool:
    return bool(engine.stats()["running"] == count)


@dataclass(frozen=True, slots=True)
class Moving:
    """Two agents with one model, and streams that run at the one that is to go."""

    leaving: Engine
    staying: Engine
    heard: list[Heard]
    tasks: "list[asyncio.Task[None]]"


async def streams_at(
    site: WorkersSite, stack: AsyncExitStack, model: str, wanted: tuple[int, int], slots: int
) -> Moving:
    """So many streams of each worker at the agent ``MODEL-leaving``, then ``MODEL-staying`` comes with
    ``slots``."""
    house, gateway = site.house, Gateway(site.supervisor, 0, site.state)
    engines = [house.engine("--model", model, name=f"{model}-{which}") for which in ("leaving", "staying")]
    heard = await clients_of(site, stack, wanted)
    count = sum(wanted)

    async def join(engine: Engine, slots: int, name: str, of_both: int) -> None:
        arguments = ("--slots", str(slots))
        house.agent(gateway, engine.url, *arguments, name=name, dial=site.url, environment=CONTINUES)
        await offered(site, model, of_both)

    await join(engines[0], 2 * count, f"{model}-leaving-agent", 2 * count)
    await known(model, heard)
    tasks = [asyncio.ensure_future(each.ask(model)) for each in heard]
    await eventually("all run", partial(runs, engines[0], count))
    await engines[0].step(lambda: all(len(each.text) > 20 for each in heard))
    await join(engines[1], slots, f"{model}-staying-agent", 2 * count + slots)
    return Moving(engines[0], engines[1], heard, tasks)


async def whole(moving: Moving) -> None:
    """Every client has its own answer, once."""
    await moving.staying.step(lambda: all(each.done() for each in moving.tasks))
    await asyncio.gather(*moving.tasks)
    wrong = [
        each
        for each in moving.heard
        if (each.text, each.error, each.done) != (answer_to(each.prompt, TOKENS), "", True)
    ]
    assert wrong == []


async def test_streams_of_both_workers_move_whichever_is_asked(site: WorkersSite) -> None:
    async with AsyncExitStack() as stack:
        moving = await streams_at(site, stack, "moving", (5, 5), 20)
        moved, asked = 0, 0
        async with site.client("operator", fresh=True) as client, asyncio.timeout(60):
            while True:
                async with client.post("/admin/agents/moving-leaving-agent/move") as response:
                    said = await response.json()
                    assert response.status == 200, said
                assert "missing" not in said
                moved, asked = moved + said["moved"], asked + 1
                if not said["streams"]:
                    break
                await asyncio.sleep(0.1)
        assert moved == 10
        assert runs(moving.leaving, 0)
        await eventually("all run at the other agent", partial(runs, moving.staying, 10))
        await whole(moving)


async def test_slots_that_lie_idle_at_the_other_worker_are_moved_to(site: WorkersSite) -> None:
    """Nine streams are of one worker and one of the other; of the ten slots elsewhere each has five."""
    async with AsyncExitStack() as stack:
        moving = await streams_at(site, stack, "uneven", (9, 1), 10)
        told = await asyncio.to_thread(site.command, "drain", "--move", "uneven-leaving-agent")
        assert told.returncode == 0, told.stderr
        assert runs(moving.leaving, 0)
        await eventually("all run at the other agent", partial(runs, moving.staying, 10))
        await whole(moving)
