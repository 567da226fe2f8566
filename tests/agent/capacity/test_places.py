"""What runs at each deployment of an engine, and what of its slots each session may have."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.capacity.capacity import EngineLimit
from agent.capacity.places import EngineSlot, OfferedEngine
from shared.protocol.messages import DeploymentState
from tests.agent.support.joined import PlayedBackend


def deployment(model: str) -> DeploymentState:
    return DeploymentState(id=f"e/{model}", model=model, slots=4)


def engine_with(*models: str) -> OfferedEngine:
    offered = tuple(deployment(model) for model in models)
    engine = OfferedEngine(PlayedBackend(*offered), None, EngineLimit(4))
    engine.offer(offered)
    return engine


def test_a_level_is_what_runs_there_and_what_is_free() -> None:
    engine = engine_with("a", "b")
    a, b = engine.places.values()
    assert a.level("s", 4) == 4
    a.enter("s", 0.0)
    b.enter("s", 0.0)
    started = a.enter("other", 0.0)
    assert (a.running, b.running, engine.running) == (2, 1, 3)
    assert a.level("s", 4) == 2
    assert b.level("s", 4) == 2
    assert b.level("other", 4) == 1
    assert a.level("s", 1) == 1
    a.leave("other", started, 0.0)
    assert a.level("s", 4) == 3


@given(
    st.lists(st.tuples(st.sampled_from("st"), st.sampled_from(["e/a", "e/b"])), max_size=20),
    st.integers(0, 8),
)
def test_levels_never_promise_more_free_places_than_there_are(
    entered: list[tuple[str, str]], limit: int
) -> None:
    engine = engine_with("a", "b")
    places = engine.places
    started = [places[id_].enter(session, 0.0) for session, id_ in entered]
    free = max(0, limit - len(entered))
    for session in "st":
        for id_, place in places.items():
            assert place.level(session, limit) == entered.count((session, id_)) + free
    for (session, id_), at in zip(entered, started, strict=True):
        places[id_].leave(session, at, 0.0)
    assert engine.running == 0
    assert not any(place.running or place._by_session for place in places.values())


def test_nobody_leaves_who_has_not_entered() -> None:
    (place,) = engine_with("a").places.values()
    started = place.enter("s", 0.0)
    with pytest.raises(AssertionError):
        place.leave("other", started, 0.0)


def test_what_runs_at_a_deployment_that_is_gone_counts_until_it_is_over() -> None:
    engine = engine_with("a", "b")
    assert not engine.alone
    place = engine.places["e/a"]
    started = place.enter("s", 0.0)
    engine.offer((deployment("b"),))
    assert engine.alone
    assert engine.running == 1
    engine.offer((deployment("a"), deployment("b")))
    assert engine.places["e/a"] is place
    assert place.leave("s", started, 2.0) == 2.0
    engine.offer((deployment("b"),))
    assert list(engine.places) == ["e/b"]


def test_a_slot_says_where_it_is() -> None:
    engine = engine_with("a")
    slot = EngineSlot("s", engine.places["e/a"], 0, False, 0.0, 0.0)
    assert (slot.engine, slot.deployment) == ("e", "e/a")
