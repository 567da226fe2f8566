"""What is offered, and who is let in."""

import pytest

from agent.capacity.capacity import GRACE_S
from agent.capacity.roster import STATE_BYTES, Roster
from agent.engines.backend import BackendRefused
from shared.protocol.engine_state import EngineState
from shared.protocol.messages import AgentStatus, DeploymentState, DeploymentStatus, GpuState
from tests.agent.support.joined import PlayedBackend
from tests.support.clock import ManualClock


def deployment(model: str = "m", engine: str = "e", slots: int = 2, **more: object) -> DeploymentState:
    return DeploymentState(id=f"{engine}/{model}", model=model, slots=slots, **more)  # type: ignore[arg-type]


def roster_of(*backends: PlayedBackend) -> tuple[Roster, list[int]]:
    roster, changes = Roster(ManualClock()), []
    for backend in backends:
        roster.add(backend)
    roster.on_change = lambda: changes.append(1)
    return roster, changes


async def test_places_are_given_until_they_are_all_taken() -> None:
    roster, _ = roster_of(PlayedBackend(deployment()))
    seats = [roster.enter("s", "e/m") for _ in range(2)]
    with pytest.raises(BackendRefused, match="2 slots are taken"):
        roster.enter("s", "e/m")
    roster.leave(seats[0], failed=False)
    roster.enter("s", "e/m")


async def test_an_engine_with_one_slot_never_has_two_requests_however_many_models_it_serves() -> None:
    roster, _ = roster_of(PlayedBackend(deployment("a", slots=1), deployment("b", slots=1)))
    seat = roster.enter("s", "e/a")
    with pytest.raises(BackendRefused, match="1 slots are taken"):
        roster.enter("s", "e/b")
    roster.leave(seat, failed=False)
    roster.enter("s", "e/b")


async def test_nobody_is_let_in_where_nothing_is_loaded_or_known() -> None:
    backend = PlayedBackend(deployment(status=DeploymentStatus.FAILED, reason="it died"))
    roster, _ = roster_of(backend)
    with pytest.raises(BackendRefused, match="failed: it died"):
        roster.enter("s", "e/m")
    with pytest.raises(BackendRefused, match="no such deployment"):
        roster.enter("s", "e/other")
    assert roster.levels("s") == {"e/m": 0}


async def test_draining_closes_the_door_and_lets_the_running_finish() -> None:
    roster, changes = roster_of(PlayedBackend(deployment()))
    seat = roster.enter("s", "e/m")
    roster.drain()
    assert changes == [1]
    assert roster.levels("s") == {"e/m": 0}
    assert roster.state().status is AgentStatus.DRAINING
    with pytest.raises(BackendRefused, match="draining"):
        roster.enter("s", "e/m")
    assert roster.running == 1
    roster.leave(seat, failed=False)
    assert roster.running == 0


async def test_an_engine_with_one_deployment_keeps_its_level_whatever_runs() -> None:
    roster, changes = roster_of(PlayedBackend(deployment()))
    roster.enter("s", "e/m")
    assert roster.levels("s") == {"e/m": 2}
    assert not changes


async def test_deployments_of_one_engine_share_its_places() -> None:
    roster, changes = roster_of(PlayedBackend(deployment("a"), deployment("b")))
    roster.enter("s", "e/a")
    assert roster.levels("s") == {"e/a": 2, "e/b": 1}
    assert changes == [1]
    roster.enter("s", "e/b")
    roster.enter("s", "e/b")  # it was on its way when the level fell
    assert roster.levels("s") == {"e/a": 1, "e/b": 2}


async def test_places_of_a_lost_session_are_not_promised_to_the_next() -> None:
    roster, _ = roster_of(PlayedBackend(deployment()))
    roster.enter("old", "e/m")
    assert roster.levels("new") == {"e/m": 1}


async def test_a_new_session_is_told_as_requests_of_the_lost_one_end() -> None:
    roster, changes = roster_of(PlayedBackend(deployment()))
    seats = [roster.enter("old", "e/m") for _ in range(2)]
    assert roster.levels("new") == {"e/m": 0}
    roster.leave(seats[0], failed=False)
    assert (changes, roster.levels("new")) == ([1], {"e/m": 1})
    mine = roster.enter("new", "e/m")
    roster.leave(seats[1], failed=False)
    assert (changes, roster.levels("new")) == ([1, 1], {"e/m": 2})
    roster.leave(mine, failed=False)
    assert changes == [1, 1]


async def test_an_engine_out_of_memory_gets_less_and_the_gateway_hears_of_it() -> None:
    roster, changes = roster_of(PlayedBackend(deployment(slots=8)))
    roster.levels("s")
    roster.leave(roster.enter("s", "e/m"), failed=False, out_of_memory=True)
    assert (changes, roster.levels("s")) == ([1], {"e/m": 4})


async def test_the_status_says_how_it_goes() -> None:
    backend = PlayedBackend()
    roster, _ = roster_of(backend)
    assert roster.state().status is AgentStatus.FAILED  # there is nothing to offer
    backend.offer(deployment())
    assert roster.state().status is AgentStatus.READY
    seats = [roster.enter("s", "e/m") for _ in range(2)]
    assert roster.state().status is AgentStatus.BUSY
    roster.leave(seats[0], failed=False)
    assert roster.state().status is AgentStatus.READY
    assert roster.state().deployments[0].running == 1
    backend.offer(deployment(status=DeploymentStatus.FAILED))
    assert roster.state().status is AgentStatus.FAILED
    backend.offer(deployment(status=DeploymentStatus.LOADING))
    assert roster.state().status is AgentStatus.READY


async def test_an_engines_lasting_queue_lowers_its_level() -> None:
    clock = ManualClock()
    roster = Roster(clock)
    roster.add(PlayedBackend(deployment(slots=8, waiting=4)))
    changes: list[int] = []
    roster.on_change = lambda: changes.append(1)
    for _ in range(8):
        roster.enter("s", "e/m")
    clock.advance(GRACE_S)
    roster.observe()
    assert changes == [1]
    assert roster.levels("s") == {"e/m": 8}  # those that run there are not taken away
    assert roster.levels("other") == {"e/m": 0}


async def test_failures_lower_the_level_and_are_told() -> None:
    roster, changes = roster_of(PlayedBackend(deployment(slots=8)))
    roster.levels("s")
    for _ in range(3):
        roster.leave(roster.enter("s", "e/m"), failed=True)
    assert changes == [1]
    assert roster.levels("s") == {"e/m": 1}


async def test_a_model_that_cannot_be_named_is_not_offered() -> None:
    roster, _ = roster_of(PlayedBackend(deployment("a b"), deployment("x" * 300), deployment("c")))
    assert [offered.id for offered in roster.state().deployments] == ["e/c"]


async def test_a_state_too_long_for_a_frame_is_cut() -> None:
    roster, _ = roster_of(PlayedBackend(*(deployment("x" * 120 + str(number)) for number in range(200))))
    gpu = GpuState(0, "GPU", 1, 0)
    state = roster.state((gpu,) * 100)
    assert len(state.to_payload()) <= STATE_BYTES
    assert 50 < len(state.deployments) < 200
    assert len(state.gpus) == 64


async def test_every_engine_is_told_of_also_without_a_deployment() -> None:
    away, there = PlayedBackend(name="away"), PlayedBackend(deployment(engine="there"), name="there")
    roster, _ = roster_of(away, there)
    state = roster.state()
    assert [(e.name, e.status, e.reason) for e in state.engines] == [
        ("away", DeploymentStatus.FAILED, "it offers nothing"),
        ("there", DeploymentStatus.LOADED, ""),
    ]
    assert (state.status, state.reason) == (AgentStatus.READY, "")
    there.offer()
    state = roster.state()
    assert (state.status, state.reason) == (
        AgentStatus.FAILED,
        "away is failed: it offers nothing; there is failed: it offers nothing",
    )


async def test_an_agent_without_engines_says_why() -> None:
    roster, _ = roster_of()
    assert roster.state().reason == "no engine is named in its settings"
    roster.without_engines = "no engine is found"
    assert (roster.state().status, roster.state().reason) == (AgentStatus.READY, "no engine is found")


async def test_engines_take_no_more_of_a_state_than_there_is_room_for() -> None:
    class Wordy(PlayedBackend):
        def engine(self) -> EngineState:
            return EngineState(self.name, DeploymentStatus.FAILED, "\x01" * 512)

    roster, _ = roster_of(*(Wordy(deployment(engine=f"e{n}"), name=f"e{n}") for n in range(80)))
    state = roster.state()
    assert len(state.deployments) == 80
    assert 1 <= len(state.engines) < 64
    assert len(state.to_payload()) <= 49_152


async def test_what_an_engine_lacks_is_told_until_the_engine_is_there_anew() -> None:
    backend = PlayedBackend(deployment(lacks=("score/score",)), deployment("n"))
    roster, changes = roster_of(backend)
    seat = roster.enter("s", "e/m")
    for _ in range(2):
        roster.note_lack(seat, "rerank")
    assert changes == [1, 1]  # the place in an engine of two, and what it lacks, once
    assert [each.lacks for each in roster.state().deployments] == [("rerank", "score/score"), ()]
    backend.offer(deployment(status=DeploymentStatus.FAILED))
    backend.offer(deployment())
    assert [each.lacks for each in roster.state().deployments] == [()]
    roster.leave(seat, failed=False)
