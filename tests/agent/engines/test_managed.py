"""An engine's process loaded, lost and unloaded, and what is said of it."""

from dataclasses import replace

import pytest

from agent.capacity.load_times import LoadTimes
from agent.engines import hang
from agent.engines.backend import BackendRefused
from agent.engines.hang import LifeSigns
from shared.protocol.engine_state import EngineState
from shared.protocol.messages import DeploymentState, DeploymentStatus
from tests.agent.support.canned import until
from tests.agent.support.played_loading import PlayedLoading, settled
from tests.support.clock import ManualClock

LOADED, LOADABLE = DeploymentStatus.LOADED, DeploymentStatus.LOADABLE
LOADING, FAILED = DeploymentStatus.LOADING, DeploymentStatus.FAILED


def state_of(engine: PlayedLoading) -> DeploymentState:
    return engine.deployments()[0]


async def loaded(engine: PlayedLoading) -> PlayedLoading:
    await engine.start()
    engine.load()
    await settled()
    await engine.come_up()
    assert state_of(engine).status is LOADED
    return engine


async def test_an_engine_on_demand_is_offered_before_it_ever_ran() -> None:
    engine = PlayedLoading()
    await engine.start()
    state = state_of(engine)
    assert (state.id, state.status, state.managed, state.slots) == ("e/e", LOADABLE, True, 2)
    assert (engine.lives, engine.wanted) == (0, False)


async def test_where_it_runs_is_told() -> None:
    engine = PlayedLoading(gpus=(1,))
    await engine.start()
    assert state_of(engine).gpu_indices == (1,)
    await loaded(engine)
    assert state_of(engine).gpu_indices == (1,)
    await engine.close()


async def test_one_that_is_loaded_at_start_is_not_for_the_gateway_to_unload() -> None:
    engine = PlayedLoading(at_start=True, managed=False)
    await engine.start()
    await settled()
    assert (state_of(engine).status, state_of(engine).managed, engine.lives) == (LOADING, False, 1)
    await engine.close()


async def test_loading_is_measured_and_loaded_twice_is_loaded_once(clock: ManualClock) -> None:
    engine = PlayedLoading(clock=clock, durations=LoadTimes(), load_s=90.0)
    engine.load()
    engine.load()
    await settled()
    assert (state_of(engine).status, state_of(engine).load_s, engine.wanted) == (LOADING, 90.0, True)
    clock.advance(40.0)
    await engine.come_up()
    assert (state_of(engine).status, state_of(engine).load_s, engine.lives) == (LOADED, 40.0, 1)
    engine.load()
    assert engine.lives == 1
    await engine.close()


async def test_what_the_engine_said_of_itself_is_still_known_when_it_is_unloaded() -> None:
    engine = PlayedLoading()
    engine.http.states = (replace(engine.states[0], slots=7, kv_tokens=1000, kv_use=0.5, running=1),)
    await loaded(engine)
    engine.unload()
    await settled()
    state = state_of(engine)
    assert (state.status, state.slots, state.kv_tokens) == (LOADABLE, 7, 1000)
    assert (state.kv_use, state.running, state.reason) == (None, 0, "")


async def test_until_its_memory_is_free_it_is_neither_loaded_again_nor_loadable() -> None:
    engine = await loaded(PlayedLoading())
    engine.freed.clear()
    engine.unload()
    engine.unload()
    await settled()
    assert (state_of(engine).status, state_of(engine).reason) == (LOADED, "the model is being unloaded")
    assert (engine.wanted, engine.unloading) == (True, True)
    with pytest.raises(BackendRefused, match="unloaded"):
        engine.load()
    engine.freed.set()
    await settled()
    assert (state_of(engine).status, engine.wanted) == (LOADABLE, False)
    engine.load()
    await settled()
    assert engine.lives == 2
    await engine.close()


async def test_a_load_can_be_given_up() -> None:
    engine = PlayedLoading()
    engine.load()
    await settled()
    engine.unload()
    assert (state_of(engine).status, engine.unloading) == (LOADING, True)
    await settled()
    assert (state_of(engine).status, engine.wanted) == (LOADABLE, False)


async def test_a_crashed_engine_is_started_again_and_at_once_when_told_to() -> None:
    engine = await loaded(PlayedLoading())
    await engine.end()
    assert (state_of(engine).status, engine.rests, engine.wanted) == (FAILED, [1.0], True)
    engine.load()
    await settled()
    assert (state_of(engine).status, engine.lives) == (LOADING, 2)
    await engine.close()


async def test_a_crashed_engine_is_started_again_at_once_when_told_to_before_it_is_gone() -> None:
    engine = await loaded(PlayedLoading())
    engine.freed.clear()
    await engine.end()
    assert (state_of(engine).status, engine.rests) == (FAILED, [])
    engine.load()
    engine.freed.set()
    await settled()
    assert (state_of(engine).status, engine.lives) == (LOADING, 2)
    await engine.close()


async def test_a_crashed_engine_that_is_unloaded_is_not_started_again() -> None:
    engine = await loaded(PlayedLoading())
    await engine.end()
    engine.unload()
    await settled()
    engine.rested.set()
    await settled()
    assert (state_of(engine).status, engine.lives, engine.wanted) == (LOADABLE, 1, False)


@pytest.mark.parametrize("loading_s", [0.0, 60.0])
async def test_a_managed_engine_that_never_comes_to_serve_gives_its_memory_back(
    clock: ManualClock, loading_s: float
) -> None:
    engine = PlayedLoading(clock=clock)
    engine.rested.set()
    engine.load()
    for life in (1, 2, 3):
        await settled()
        assert engine.lives == life
        clock.advance(loading_s)
        await engine.end()
    assert (state_of(engine).status, state_of(engine).reason) == (FAILED, "it crashed (given up)")
    assert (engine.wanted, engine.rests) == (False, [1.0, 2.0])
    engine.load()
    await settled()
    assert (state_of(engine).status, engine.lives) == (LOADING, 4)
    await engine.end("no such model", unrecoverable=True)
    assert (state_of(engine).reason, engine.wanted) == ("no such model (given up)", False)
    engine.unload()
    await settled()
    assert state_of(engine).status is LOADABLE


async def test_an_engine_that_served_for_long_begins_a_new_row_of_crashes(clock: ManualClock) -> None:
    engine = PlayedLoading(clock=clock)
    engine.rested.set()
    engine.load()
    for served_s in (0.0, 5.0, 20.0, 5.0):
        await settled()
        clock.advance(60.0)
        await engine.come_up()
        clock.advance(served_s)
        await engine.end()
    assert engine.rests == [1.0, 2.0, 1.0, 2.0]
    await engine.close()


async def test_one_whose_process_runs_and_does_not_answer_has_to_be_unloaded_first() -> None:
    engine = await loaded(PlayedLoading())
    engine.http.states = (replace(engine.states[0], status=FAILED, reason="the engine hangs"),)
    assert state_of(engine).reason == "the engine hangs"
    with pytest.raises(BackendRefused, match="unload it first"):
        engine.load()
    await engine.close()


async def test_one_that_answers_nothing_any_more_is_ended_and_started_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(hang, "LOOK_S", 0.0)
    engine = await loaded(PlayedLoading(hung_s=0.01))
    await settled()
    assert state_of(engine).status is LOADED, "its questions are answered"
    engine.http.signs = LifeSigns(unanswered=hang.QUESTIONS)
    await until(lambda: engine.rests)
    assert "the engine hangs: it has answered nothing for" in state_of(engine).reason
    assert (engine.rests, engine.wanted) == ([1.0], True)
    engine.rested.set()
    await settled()
    assert (state_of(engine).status, engine.lives) == (LOADED, 2)
    await engine.close()


async def test_one_that_hangs_each_time_it_serves_is_started_later_and_later(
    monkeypatch: pytest.MonkeyPatch, clock: ManualClock
) -> None:
    monkeypatch.setattr(hang, "LOOK_S", 0.0)
    engine = await loaded(PlayedLoading(clock=clock, hung_s=0.01))
    engine.http.signs = LifeSigns(unanswered=hang.QUESTIONS)
    await until(lambda: engine.rests)
    engine.rested.set()
    await until(lambda: state_of(engine).status is LOADED)
    clock.advance(20.0)  # for a part of them it hangs
    await until(lambda: len(engine.rests) > 1)
    assert engine.rests[:2] == [1.0, 2.0]
    await engine.close()


async def test_loading_says_for_how_long_of_how_long_and_what_it_is_at(clock: ManualClock) -> None:
    engine = PlayedLoading(clock=clock, load_s=24.0)
    assert engine.engine().status is DeploymentStatus.LOADABLE
    engine.load()
    await settled()
    clock.advance(6.0)
    engine._note_progress(None, "importing")
    assert engine.engine() == EngineState(
        "e", DeploymentStatus.LOADING, "importing", loading_s=6.0, load_s=24.0
    )
    engine._note_progress(0.5, "reading")
    assert (engine.engine().load_progress, engine.deployments()[0].load_progress) == (0.5, 0.5)
    await engine.come_up()
    assert engine.engine() == EngineState("e", DeploymentStatus.LOADED, kind="generic")
    await engine.end("it crashed")
    assert engine.engine().reason == "it crashed (again in 1 s)"
    await engine.close()
