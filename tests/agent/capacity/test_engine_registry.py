"""What is offered, and who is let in."""

import pytest

from agent.capacity.capacity import GRACE_S
from agent.capacity.engine_registry import STATE_BYTES, EngineRegistry
from agent.engines.backend import BackendRefused
from shared.protocol.engine_state import EngineState
from shared.protocol.messages import AgentStatus, DeploymentState, DeploymentStatus, GpuState
from tests.agent.support.joined import PlayedBackend
from tests.support.clock import ManualClock


def deployment(model: str = "m", engine: str = "e", slots: int = 2, **more: object) -> DeploymentState:
    return DeploymentState(id=f"{engine}/{model}", model=model, slots=slots, **more)  # type: ignore[arg-type]


def registry_of(*backends: PlayedBackend) -> tuple[EngineRegistry, list[int]]:
    registry, changes = EngineRegistry(ManualClock()), []
    for backend in backends:
        registry.add(backend)
    registry.on_change = lambda: changes.append(1)
    return registry, changes


async def test_places_are_given_until_they_are_all_taken() -> None:
    registry, _ = registry_of(PlayedBackend(deployment()))
    seats = [registry.enter("s", "e/m") for _ in range(2)]
    with pytest.raises(BackendRefused, match="2 slots are taken"):
        registry.enter("s", "e/m")
    registry.leave(seats[0], failed=False)
    registry.enter("s", "e/m")


async def test_an_engine_with_one_slot_never_has_two_requests_however_many_models_it_serves() -> None:
    registry, _ = registry_of(PlayedBackend(deployment("a", slots=1), deployment("b", slots=1)))
    seat = registry.enter("s", "e/a")
    with pytest.raises(BackendRefused, match="1 slots are taken"):
        registry.enter("s", "e/b")
    registry.leave(seat, failed=False)
    registry.enter("s", "e/b")


async def test_nobody_is_let_in_where_nothing_is_loaded_or_known() -> None:
    backend = PlayedBackend(deployment(status=DeploymentStatus.FAILED, reason="it died"))
    registry, _ = registry_of(backend)
    with pytest.raises(BackendRefused, match="failed: it died"):
        registry.enter("s", "e/m")
    with pytest.raises(BackendRefused, match="no such deployment"):
        registry.enter("s", "e/other")
    assert registry.levels("s") == {"e/m": 0}


async def test_draining_closes_the_door_and_lets_the_running_finish() -> None:
    registry, changes = registry_of(PlayedBackend(deployment()))
    seat = registry.enter("s", "e/m")
    registry.drain()
    assert changes == [1]
    assert registry.levels("s") == {"e/m": 0}
    assert registry.state().status is AgentStatus.DRAINING
    with pytest.raises(BackendRefused, match="draining"):
        registry.enter("s", "e/m")
    assert registry.running == 1
    registry.leave(seat, failed=False)
    assert registry.running == 0


async def test_an_engine_with_one_deployment_keeps_its_level_whatever_runs() -> None:
    registry, changes = registry_of(PlayedBackend(deployment()))
    registry.enter("s", "e/m")
    assert registry.levels("s") == {"e/m": 2}
    assert not changes


async def test_deployments_of_one_engine_share_its_places() -> None:
    registry, changes = registry_of(PlayedBackend(deployment("a"), deployment("b")))
    registry.enter("s", "e/a")
    assert registry.levels("s") == {"e/a": 2, "e/b": 1}
    assert changes == [1]
    registry.enter("s", "e/b")
    registry.enter("s", "e/b")  # it was on its way when the level fell
    assert registry.levels("s") == {"e/a": 1, "e/b": 2}


async def test_places_of_a_lost_session_are_not_promised_to_the_next() -> None:
    registry, _ = registry_of(PlayedBackend(deployment()))
    registry.enter("old", "e/m")
    assert registry.levels("new") == {"e/m": 1}


async def test_a_new_session_is_told_as_requests_of_the_lost_one_end() -> None:
    registry, changes = registry_of(PlayedBackend(deployment()))
    seats = [registry.enter("old", "e/m") for _ in range(2)]
    assert registry.levels("new") == {"e/m": 0}
    registry.leave(seats[0], failed=False)
    assert (changes, registry.levels("new")) == ([1], {"e/m": 1})
    mine = registry.enter("new", "e/m")
    registry.leave(seats[1], failed=False)
    assert (changes, registry.levels("new")) == ([1, 1], {"e/m": 2})
    registry.leave(mine, failed=False)
    assert changes == [1, 1]


async def test_an_engine_out_of_memory_gets_less_and_the_gateway_hears_of_it() -> None:
    registry, changes = registry_of(PlayedBackend(deployment(slots=8)))
    registry.levels("s")
    registry.leave(registry.enter("s", "e/m"), failed=False, out_of_memory=True)
    assert (changes, registry.levels("s")) == ([1], {"e/m": 4})


async def test_the_status_says_how_it_goes() -> None:
    backend = PlayedBackend()
    registry, _ = registry_of(backend)
    assert registry.state().status is AgentStatus.FAILED  # there is nothing to offer
    backend.offer(deployment())
    assert registry.state().status is AgentStatus.READY
    seats = [registry.enter("s", "e/m") for _ in range(2)]
    assert registry.state().status is AgentStatus.BUSY
    registry.leave(seats[0], failed=False)
    assert registry.state().status is AgentStatus.READY
    assert registry.state().deployments[0].running == 1
    backend.offer(deployment(status=DeploymentStatus.FAILED))
    assert registry.state().status is AgentStatus.FAILED
    backend.offer(deployment(status=DeploymentStatus.LOADING))
    assert registry.state().status is AgentStatus.READY


async def test_an_engines_lasting_queue_lowers_its_level() -> None:
    clock = ManualClock()
    registry = EngineRegistry(clock)
    registry.add(PlayedBackend(deployment(slots=8, waiting=4)))
    changes: list[int] = []
    registry.on_change = lambda: changes.append(1)
    for _ in range(8):
        registry.enter("s", "e/m")
    clock.advance(GRACE_S)
    registry.observe()
    assert changes == [1]
    assert registry.levels("s") == {"e/m": 8}  # those that run there are not taken away
    assert registry.levels("other") == {"e/m": 0}


async def test_failures_lower_the_level_and_are_told() -> None:
    registry, changes = registry_of(PlayedBackend(deployment(slots=8)))
    registry.levels("s")
    for _ in range(3):
        registry.leave(registry.enter("s", "e/m"), failed=True)
    assert changes == [1]
    assert registry.levels("s") == {"e/m": 1}


async def test_a_model_that_cannot_be_named_is_not_offered() -> None:
    registry, _ = registry_of(PlayedBackend(deployment("a b"), deployment("x" * 300), deployment("c")))
    assert [offered.id for offered in registry.state().deployments] == ["e/c"]


async def test_a_state_too_long_for_a_frame_is_cut() -> None:
    registry, _ = registry_of(PlayedBackend(*(deployment("x" * 120 + str(number)) for number in range(200))))
    gpu = GpuState(0, "GPU", 1, 0)
    state = registry.state((gpu,) * 100)
    assert len(state.to_payload()) <= STATE_BYTES
    assert 50 < len(state.deployments) < 200
    assert len(state.gpus) == 64


async def test_every_engine_is_told_of_also_without_a_deployment() -> None:
    away, there = PlayedBackend(name="away"), PlayedBackend(deployment(engine="there"), name="there")
    registry, _ = registry_of(away, there)
    state = registry.state()
    assert [(e.name, e.status, e.reason) for e in state.engines] == [
        ("away", DeploymentStatus.FAILED, "it offers nothing"),
        ("there", DeploymentStatus.LOADED, ""),
    ]
    assert (state.status, state.reason) == (AgentStatus.READY, "")
    there.offer()
    state = registry.state()
    assert (state.status, state.reason) == (
        AgentStatus.FAILED,
        "away is failed: it offers nothing; there is failed: it offers nothing",
    )


async def test_an_agent_without_engines_says_why() -> None:
    registry, _ = registry_of()
    assert registry.state().reason == "no engine is named in its settings"
    registry.without_engines = "no engine is found"
    assert (registry.state().status, registry.state().reason) == (AgentStatus.READY, "no engine is found")


async def test_engines_take_no_more_of_a_state_than_there_is_room_for() -> None:
    class Wordy(PlayedBackend):
        def engine(self) -> EngineState:
            return EngineState(self.name, DeploymentStatus.FAILED, "\x01" * 512)

    registry, _ = registry_of(*(Wordy(deployment(engine=f"e{n}"), name=f"e{n}") for n in range(80)))
    state = registry.state()
    assert len(state.deployments) == 80
    assert 1 <= len(state.engines) < 64
    assert len(state.to_payload()) <= 49_152


async def test_what_an_engine_lacks_is_told_until_the_engine_is_there_anew() -> None:
    backend = PlayedBackend(deployment(lacks=("score/score",)), deployment("n"))
    registry, changes = registry_of(backend)
    seat = registry.enter("s", "e/m")
    for _ in range(2):
        registry.note_lack(seat, "rerank")
    assert changes == [1, 1]  # the place in an engine of two, and what it lacks, once
    assert [each.lacks for each in registry.state().deployments] == [("rerank", "score/score"), ()]
    backend.offer(deployment(status=DeploymentStatus.FAILED))
    backend.offer(deployment())
    assert [each.lacks for each in registry.state().deployments] == [()]
    registry.leave(seat, failed=False)
