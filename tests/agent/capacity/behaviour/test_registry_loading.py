"""Commands to load and to unload, and engines that nobody uses."""

import asyncio
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.capacity.engine_registry import EngineRegistry
from agent.capacity.model_memory import ModelMemory
from agent.capacity.places import EngineSlot
from agent.engines.backend import BackendRefused
from shared.protocol.messages import (
    Command,
    CommandResult,
    CommandVerb,
    DeploymentState,
    DeploymentStatus,
)
from tests.agent.support.joined import PlayedBackend
from tests.agent.support.played_loading import GIB, PlayedLoading, settled
from tests.support.clock import ManualClock

LOADED, LOADABLE, LOADING = DeploymentStatus.LOADED, DeploymentStatus.LOADABLE, DeploymentStatus.LOADING


class Host:
    """Engines of 10 GiB each, on a host with so many GiB for models."""

    def __init__(self, *engines: PlayedLoading, room: int | None = 16) -> None:
        self.clock = ManualClock()
        self.registry = EngineRegistry(self.clock, ModelMemory(lambda: None if room is None else room * GIB))
        self.changes = 0
        self._ids = 0
        for engine in engines:
            self.registry.add(engine)
        self.registry.on_change = self._changed

    def _changed(self) -> None:
        self.changes += 1

    def tell(self, verb: str, deployment: str) -> CommandResult:
        self._ids += 1
        result = self.registry.carry_out(Command(self._ids, CommandVerb(verb), deployment))
        assert result.id == self._ids
        assert result.ok == (not result.error)
        return result

    async def loaded(self, engine: PlayedLoading) -> None:
        assert self.tell("load", f"{engine.name}/{engine.name}").ok
        await settled()
        await engine.come_up()

    def state(self, identity: str) -> DeploymentState:
        return next(d for d in self.registry.state().deployments if d.id == identity)


def ten(name: str = "e", **loading: object) -> PlayedLoading:
    return PlayedLoading(name, memory_bytes=10 * GIB, **loading)  # type: ignore[arg-type]


async def test_a_load_is_taken_on_and_said() -> None:
    engine = ten()
    host = Host(engine)
    state = host.state("e/e")
    assert (state.status, state.managed, state.memory_bytes) == (LOADABLE, True, 10 * GIB)
    assert (host.registry.state().model_memory_bytes, host.registry.levels("s")) == (16 * GIB, {"e/e": 0})
    with pytest.raises(BackendRefused, match="loadable"):
        host.registry.enter("s", "e/e")
    assert host.tell("load", "e/e").ok
    assert (host.state("e/e").status, host.changes) == (LOADING, 1)
    assert host.tell("load", "e/e").ok
    await settled()
    await engine.come_up()
    assert (host.state("e/e").status, host.registry.levels("s")) == (LOADED, {"e/e": 2})
    host.registry.enter("s", "e/e")
    await engine.close()


async def test_two_that_do_not_fit_take_turns() -> None:
    a, b = ten("a"), ten("b")
    host = Host(a, b)
    await host.loaded(a)
    refused = host.tell("load", "b/b")
    assert "10.0 GiB of which are taken by a" in refused.error
    a.freed.clear()
    assert host.tell("unload", "a/a").ok
    assert host.tell("unload", "a/a").ok
    assert host.registry.levels("s") == {"a/a": 0, "b/b": 0}
    with pytest.raises(BackendRefused, match="being unloaded"):
        host.registry.enter("s", "a/a")
    assert "being unloaded" in host.tell("load", "a/a").error
    assert not host.tell("load", "b/b").ok
    a.freed.set()
    await settled()
    assert host.state("a/a").status is LOADABLE
    assert host.tell("load", "b/b").ok
    await b.close()


async def test_nothing_is_unloaded_while_requests_run_there() -> None:
    engine = PlayedLoading(models=2)
    host = Host(engine)
    await host.loaded(engine)
    seat = host.registry.enter("s", "e/e-2")
    assert host.tell("unload", "e/e").error == "1 requests run there"
    host.registry.leave(seat, failed=False)
    assert host.tell("unload", "e/e").ok
    await settled()
    assert [d.status for d in host.registry.state().deployments] == [LOADABLE, LOADABLE]


async def test_models_of_one_engine_share_its_memory() -> None:
    host = Host(PlayedLoading(models=3, memory_bytes=10))
    assert [d.memory_bytes for d in host.registry.state().deployments] == [4, 4, 4]


async def test_an_engine_of_unknown_memory_is_said_to_take_all() -> None:
    assert Host(PlayedLoading()).state("e/e").memory_bytes == 16 * GIB
    assert Host(PlayedLoading(), room=None).state("e/e").memory_bytes is None


async def test_who_cannot_be_commanded_says_why() -> None:
    host = Host(ten(), ten("kept", at_start=True, managed=False))
    host.registry.add(PlayedBackend(DeploymentState(id="url/m", model="m"), name="url"))
    for identity in ("kept/kept", "url/m"):
        for verb in ("load", "unload"):
            assert "not one that is loaded and unloaded" in host.tell(verb, identity).error
    assert "no such deployment" in host.tell("load", "e/other").error
    host.registry.drain()
    assert "draining" in host.tell("load", "e/e").error


async def test_what_nobody_uses_is_unloaded_and_what_runs_is_not() -> None:
    engine, always = ten("a", idle_timeout_s=60.0), ten("b")
    host = Host(engine, always, room=None)
    await host.loaded(engine)
    await host.loaded(always)
    seat = host.registry.enter("s", "a/a")
    host.clock.advance(100.0)
    host.registry.observe()
    assert not engine.unloading
    host.registry.leave(seat, failed=False)
    host.clock.advance(59.0)
    host.registry.observe()
    assert not engine.unloading
    host.clock.advance(1.0)
    host.registry.observe()
    assert engine.unloading
    await settled()
    assert (host.state("a/a").status, host.state("b/b").status) == (LOADABLE, LOADED)
    await always.close()


async def test_an_engine_that_takes_long_to_load_is_not_idle_meanwhile() -> None:
    engine = ten(idle_timeout_s=60.0)
    host = Host(engine)
    host.tell("load", "e/e")
    await settled()
    host.clock.advance(100.0)
    host.registry.observe()
    assert not engine.unloading
    await engine.come_up()
    host.clock.advance(59.0)
    host.registry.observe()
    assert not engine.unloading
    await engine.close()


async def test_a_crashed_engine_that_nobody_wants_is_given_up() -> None:
    engine = ten(idle_timeout_s=60.0)
    host = Host(engine)
    await host.loaded(engine)
    await engine.end()
    assert host.state("e/e").status is DeploymentStatus.FAILED
    host.clock.advance(60.0)
    host.registry.observe()
    await settled()
    assert (host.state("e/e").status, engine.wanted) == (LOADABLE, False)


OPERATIONS = ("load", "unload", "enter", "leave", "come up", "crash", "hold", "free", "wait", "rested")


class Story:
    """Whatever happens to three engines, these hold."""

    def __init__(self) -> None:
        self.engines = [ten("a", idle_timeout_s=5.0), ten("b"), PlayedLoading("c", memory_bytes=6 * GIB)]
        self.host = Host(*self.engines)
        self.seats: list[EngineSlot] = []

    async def happen(self, what: str, engine: PlayedLoading) -> None:
        identity = f"{engine.name}/{engine.name}"
        if what in ("load", "unload"):
            running = any(seat.place.engine.backend is engine for seat in self.seats)
            assert not (self.host.tell(what, identity).ok and what == "unload" and running)
        elif what == "enter":
            with suppress(BackendRefused):
                self.seats.append(self.host.registry.enter("s", identity))
                assert engine.status is LOADED
        elif what == "leave" and self.seats:
            self.host.registry.leave(self.seats.pop(), failed=False)
        elif what == "come up" and engine.status is LOADING:
            await engine.come_up()
        elif what == "crash" and engine.running:
            await engine.end()
        elif what in ("hold", "free"):
            (engine.freed.clear if what == "hold" else engine.freed.set)()
        elif what == "wait":
            self.host.clock.advance(3.0)
            self.host.registry.observe()
        elif what == "rested":
            engine.rested.set()
        await settled()

    def check(self) -> None:
        assert sum(e.loading.memory_bytes or 0 for e in self.engines if e.wanted) <= 16 * GIB
        levels = self.host.registry.levels("s")
        for engine in self.engines:
            state = self.host.state(f"{engine.name}/{engine.name}")
            assert (state.status is LOADABLE) <= (not engine.wanted)
            assert (levels[state.id] == 2) == (state.status is LOADED and not engine.unloading)
            assert (state.status is LOADED) <= engine.wanted

    async def end(self) -> None:
        for engine in self.engines:
            engine.freed.set()
            await engine.close()


@given(st.lists(st.tuples(st.sampled_from(OPERATIONS), st.integers(0, 2)), max_size=40))
def test_whatever_happens_memory_is_never_promised_twice(operations: list[tuple[str, int]]) -> None:
    async def tell() -> None:
        story = Story()
        for what, number in operations:
            await story.happen(what, story.engines[number])
            story.check()
        await story.end()

    asyncio.run(tell())
