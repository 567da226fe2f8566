"""Where models live: what is loaded, what goes for it, and that nobody waits for ever."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.domain.request import Tier
from gateway.scheduling.placement.data import (
    AgentDeployments,
    LoadableDeployment,
    LoadDecision,
    LoadState,
    PlacementDemand,
    PlacementPlan,
    UnloadDecision,
)
from gateway.scheduling.placement.history import PlacementHistory
from gateway.scheduling.placement.load_options import PATIENCE_SHARE, TURN_LOADS, PlacementRules
from gateway.scheduling.placement.placement import Placement
from tests.gateway.scheduling.placement.placing import Asking, World, place, stream

LOADED, LOADING, UNLOADING = LoadState.LOADED, LoadState.LOADING, LoadState.UNLOADING
RULES = PlacementRules(hold_s=300.0, min_residence_s=30.0)
NOW = 1000.0


def decide(
    *places: LoadableDeployment, wants: str = "m", memory: int | None = 10, **more: object
) -> PlacementPlan:
    """What is decided for one waiting model, by a placement that knows nothing, of agents of equal memory."""
    return _decide(Placement(RULES), *places, wants=wants, memory=memory, **more)


def _decide(
    placement: Placement,
    *places: LoadableDeployment,
    wants: str = "m",
    memory: int | None = 10,
    **more: object,
) -> PlacementPlan:
    agents = sorted({each.agent for each in places})
    hosts = [
        AgentDeployments(name, memory, tuple(each for each in places if each.agent == name))
        for name in agents
    ]
    return placement.decide([demand(wants, *places, **more)], hosts, NOW)


def demand(model: str, *places: LoadableDeployment, **more: object) -> PlacementDemand:
    keys = frozenset(each.key for each in places if each.model == model)
    return PlacementDemand(model, keys, **{"oldest_s": NOW, **more})  # type: ignore[arg-type]


def loads(plan: PlacementPlan) -> list[str]:
    return [each.key for each in plan.decisions if isinstance(each, LoadDecision)]


def unloads(plan: PlacementPlan) -> list[str]:
    return [each.key for each in plan.decisions if isinstance(each, UnloadDecision)]


def test_a_model_that_somebody_waits_for_is_loaded() -> None:
    plan = decide(place("m"))
    assert loads(plan) == ["a/m"]
    assert plan.ready_s == {"m": 20.0}
    assert "nothing serves it" in plan.decisions[0].why


def test_free_memory_comes_first_then_the_shortest_load_then_the_fastest_device_then_who_is_idle() -> None:
    other = place("n", "a", load_state=LOADED)
    assert loads(decide(place("m", "a", load_s=1.0), other, place("m", "b"))) == ["b/m"]
    assert loads(decide(place("m", "a"), place("m", "b", load_s=5.0))) == ["b/m"]
    assert loads(decide(place("m", "a"), place("m", "b", tflops=9.0))) == ["b/m"]
    hosts = [
        AgentDeployments("a", 10, (place("m", "a"),), running=3),
        AgentDeployments("b", 10, (place("m", "b"),)),
    ]
    both = demand("m", place("m", "a"), place("m", "b"))
    assert loads(Placement(RULES).decide([both], hosts, NOW)) == ["b/m"]


def test_what_does_not_fit_beside_what_is_leaving_is_loaded_once_that_has_gone() -> None:
    plan = decide(place("m"), place("n", load_state=UNLOADING))
    assert plan.decisions == ()
    assert plan.ready_s["m"] > 20.0


def test_what_is_missed_least_goes_and_the_least_recently_used_of_equals() -> None:
    placement = Placement(RULES)
    for _ in range(9):
        placement.history.popularity.arrived("often", NOW - 100.0)
    placement.history.popularity.arrived("seldom", NOW - 100.0)
    often = place("often", memory=5, load_state=LOADED, used_s=1.0)
    seldom = place("seldom", memory=5, load_state=LOADED, used_s=5.0)
    plan = _decide(placement, place("m", memory=5), often, seldom)
    assert (unloads(plan), loads(plan)) == (["a/seldom"], [])
    plan = decide(place("m", memory=5), often, seldom)
    assert unloads(plan) == ["a/often"]


def test_a_long_load_is_regretted_more_than_a_short_one() -> None:
    placement = Placement(RULES)
    for model in ("slow", "quick"):
        placement.history.popularity.arrived(model, NOW - 100.0)
    slow = place("slow", memory=5, load_s=90.0, load_state=LOADED)
    quick = place("quick", memory=5, load_s=9.0, load_state=LOADED, used_s=5.0)
    assert unloads(_decide(placement, place("m", memory=5), slow, quick)) == ["a/quick"]


def test_a_model_that_is_loaded_twice_is_missed_less() -> None:
    placement = Placement(RULES)
    for _ in range(3):
        placement.history.popularity.arrived("twice", NOW - 100.0)
    placement.history.popularity.arrived("once", NOW - 100.0)
    twice = place("twice", memory=5, load_state=LOADED), place("twice", "b", load_state=LOADED)
    once = place("once", memory=5, load_state=LOADED)
    assert unloads(_decide(placement, place("m", memory=5), once, *twice)) == ["a/twice"]


def test_no_more_goes_than_must() -> None:
    small = [place(name, memory=2, load_state=LOADED, used_s=0.0) for name in "xy"]
    large = place("z", memory=6, load_state=LOADED, used_s=5.0)
    assert unloads(decide(place("m", memory=6), *small, large)) == ["a/z"]
    assert unloads(decide(place("m", memory=4), *small, large)) == ["a/x", "a/y"]


def test_what_runs_something_is_told_to_take_nothing_more_and_goes_when_it_is_done() -> None:
    busy = LoadableDeployment("a/n", "a", "n", LOADED, 10, running=1)
    plan = decide(place("m"), busy, tier=Tier.REALTIME)
    assert plan.decisions == ()
    assert plan.closing == {"a/n"}


def test_what_was_loaded_or_used_just_now_stays_for_a_while() -> None:
    fresh = LoadableDeployment("a/n", "a", "n", LOADED, 10, loaded_s=NOW - 10.0)
    plan = decide(place("m"), fresh)
    assert (plan.decisions, plan.closing, plan.look_again_s) == ((), frozenset(), NOW + 20.0)
    placement = Placement(RULES)
    placement.history.popularity.arrived("n", NOW - 0.5)
    plan = _decide(placement, place("m"), place("n", load_state=LOADED, used_s=NOW - 0.5))
    assert plan.look_again_s is not None
    assert NOW < plan.look_again_s < NOW + 5.0


def test_what_is_pinned_never_goes() -> None:
    pinned = place("n", memory=5, load_state=LOADED, pinned=True)
    plan = decide(place("m"), pinned)
    assert plan.decisions == ()
    assert "more memory" in plan.not_loadable["m"].why
    assert loads(decide(place("m", memory=5), pinned)) == ["a/m"]
    other = place("o", memory=5, load_state=LOADED, used_s=5.0)
    assert unloads(decide(place("m", memory=5), pinned, other)) == ["a/o"]


def test_a_model_that_fits_no_agent_at_all_is_not_loadable() -> None:
    plan = decide(place("m", memory=11))
    assert (plan.decisions, plan.not_loadable["m"].retry_s) == ((), None)


def test_an_agent_that_says_no_is_believed_until_something_has_gone_there() -> None:
    placement = Placement(RULES)
    placement.history.failures.note_crowded("a/m", frozenset({"a/n"}))
    other = place("n", memory=None, load_state=LOADED)
    assert unloads(_decide(placement, place("m", memory=None), other, memory=None)) == ["a/n"]
    assert loads(_decide(placement, place("m", memory=None), memory=None)) == ["a/m"]


def test_failed_loads_are_tried_again_less_and_less_often_and_elsewhere_at_once() -> None:
    placement, failures = Placement(RULES), None
    failures = placement.history.failures
    waits_s = [failures.failed("a/m", "no such file", NOW) for _ in range(10)]
    assert waits_s[:4] == [5.0, 10.0, 20.0, 40.0]
    assert waits_s[-1] == 300.0
    assert loads(_decide(placement, place("m"), place("m", "b"))) == ["b/m"]


def test_a_model_whose_only_places_fail_is_refused_meanwhile_with_the_reason() -> None:
    placement = Placement(RULES)
    placement.history.failures.failed("a/m", "no such file", NOW)
    assert _decide(placement, place("m")).look_again_s == NOW + 5.0
    placement.history.failures.failed("a/m", "no such file", NOW)
    plan = _decide(placement, place("m"))
    assert (plan.not_loadable["m"].why, plan.not_loadable["m"].retry_s) == ("no such file", 10.0)
    placement.history.failures.note_loaded("a/m")
    assert loads(_decide(placement, place("m"))) == ["a/m"]


def test_one_more_is_loaded_only_when_the_wait_is_worth_it() -> None:
    loaded = place("m", "a", load_state=LOADED)
    assert loads(decide(loaded, place("m", "b"), served=True, wait_s=22.0)) == []
    assert loads(decide(loaded, place("m", "b"), served=True, wait_s=30.0)) == ["b/m"]
    loading = place("m", "c", load_state=LOADING)
    assert loads(decide(loaded, loading, place("m", "b"), served=True, wait_s=90.0)) == []


def test_for_one_more_only_what_is_hardly_missed_goes() -> None:
    placement = Placement(RULES)
    for _ in range(20):
        placement.history.popularity.arrived("m", NOW - 1.0)
    there = place("m", "a", load_state=LOADED), place("m", "b"), place("n", "b", load_state=LOADED)
    assert unloads(_decide(placement, *there, served=True, wait_s=60.0)) == ["b/n"]
    for _ in range(20):
        placement.history.popularity.arrived("n", NOW - 1.0)
    assert unloads(_decide(placement, *there, served=True, wait_s=60.0)) == []
    busy = there[0], there[1], LoadableDeployment("b/n", "b", "n", LOADED, 10, running=1)
    assert decide(*busy, served=True, wait_s=900.0).closing == frozenset()


def test_what_is_kept_for_one_is_not_given_to_another_who_came_later() -> None:
    first, second = place("m"), place("s", memory=5)
    loaded = LoadableDeployment("a/n", "a", "n", LOADED, 5, loaded_s=NOW - 10.0)
    hosts = [AgentDeployments("a", 10, (first, second, loaded))]
    demands = [demand("m", first, oldest_s=NOW - 9.0), demand("s", second)]
    plan = Placement(RULES).decide(demands, hosts, NOW)
    assert (plan.decisions, plan.look_again_s) == ((), NOW + 20.0)


def test_a_place_whose_agent_would_not_unload_it_is_left_alone_for_a_while() -> None:
    placement = Placement(RULES)
    placement.history.keep("a/n", NOW)
    plan = _decide(placement, place("m"), place("n", load_state=LOADED))
    assert (plan.decisions, plan.look_again_s) == ((), NOW + 5.0)


def test_what_is_remembered_is_bounded() -> None:
    history = PlacementHistory(most_models=2)
    for number in range(5):
        history.popularity.arrived(f"m{number}", 0.0)
        history.note_evicted(f"m{number}", 0.0)
    assert history.popularity.per_s("m2", 0.0) == 0.0
    assert history.popularity.per_s("m4", 0.0) > 0.0
    assert history.popularity.per_s("m4", 1e9) == 0.0


def test_what_does_not_finish_gets_new_requests_again_after_a_while() -> None:
    world = World({"a": 10}, [place("m", load_s=5.0), place("n", load_s=5.0)], RULES)
    endless = [Asking("m", 0.0, 1000.0), Asking("n", 40.0, 5.0)]
    later = [Asking("m", 100.0, 5.0), Asking("m", 250.0, 5.0)]
    world.run([*endless, *later], 300.0)
    assert later[0].waited_s > 50.0, "it was to make room"
    assert later[1].waited_s < 5.0
    assert endless[1].began_s is None


# --- Worlds ---


def test_two_models_wanted_in_turns_share_the_memory_without_thrashing() -> None:
    world = World({"a": 10}, [place("m"), place("n")], RULES)
    asked = [*stream("m", 8.0, 1000.0), *stream("n", 8.0, 1000.0, since_s=4.0)]
    world.run(asked, 1300.0)
    turn_s = TURN_LOADS * 20.0
    longest_s = turn_s + PATIENCE_SHARE * RULES.hold_s + 2 * (20.0 + 2.0 + 5.0) + 4.0
    assert max(one.waited_s for one in asked) <= longest_s
    assert sum(world.loads.values()) <= 1300.0 / (turn_s + 20.0) + 1


def test_who_is_wanted_seldom_is_served_beside_one_wanted_all_the_time() -> None:
    world = World({"a": 10}, [place("busy"), place("seldom")], RULES)
    asked = [*stream("busy", 2.0, 1000.0), *stream("seldom", 400.0, 1000.0, since_s=300.0)]
    world.run(asked, 1200.0)
    assert max(one.waited_s for one in asked if one.model == "seldom") < 150.0
    assert world.loads["seldom"] <= 2


def test_three_models_on_one_place_have_their_turns_though_none_of_their_queues_ever_empties() -> None:
    world = World({"a": 10}, [place(name) for name in "xyz"], RULES)
    asked = [one for name in "xyz" for one in stream(name, 2.0, 1000.0)]
    world.run(asked, 1000.0)
    assert max(world.loads.values()) - min(world.loads.values()) <= 1
    assert min(world.loads.values()) >= 3


def test_more_of_the_same_is_loaded_where_memory_is_free() -> None:
    world = World({"a": 10, "b": 10}, [place("m", "a"), place("m", "b")], RULES)
    world.run(stream("m", 1.0, 200.0, takes_s=4.0), 200.0)
    assert len(world.loaded) == 2


def test_a_load_that_fails_is_made_up_for_elsewhere() -> None:
    world = World({"a": 10, "b": 10}, [place("m", "a"), place("m", "b")], RULES)
    world.sites["a/m"].fails = 9
    asked = stream("m", 10.0, 100.0)
    world.run(asked, 200.0)
    assert world.loaded == ["b/m"]
    assert max(one.waited_s for one in asked) <= 42.0


@st.composite
def worlds(draw: st.DrawFn) -> tuple[World, list[Asking]]:
    agents = {f"a{n}": draw(st.integers(8, 16)) for n in range(draw(st.integers(1, 3)))}
    models = [f"m{n}" for n in range(draw(st.integers(1, 5)))]
    places = []
    for model in models:
        memory, load_s = draw(st.integers(1, 8)), float(draw(st.integers(1, 25)))
        homes = draw(st.sets(st.sampled_from(sorted(agents)), min_size=1))
        places += [place(model, agent, memory=memory, load_s=load_s) for agent in sorted(homes)]
    asked = [
        Asking(model, float(at_s), float(takes_s), tier)
        for model, at_s, takes_s, tier in draw(
            st.lists(
                st.tuples(
                    st.sampled_from(models),
                    st.integers(0, 300),
                    st.integers(1, 40),
                    st.sampled_from(list(Tier)),
                ),
                max_size=40,
            )
        )
    ]
    world = World(dict(agents), places, RULES)
    for site in world.sites.values():
        site.fails = draw(st.sampled_from([0, 0, 0, 1]))
    return world, asked


@settings(max_examples=20, deadline=None)
@given(worlds())
def test_memory_is_never_exceeded_nothing_with_work_goes_and_everybody_is_served(
    drawn: tuple[World, list[Asking]],
) -> None:
    """The world asserts the first two at every step."""
    world, asked = drawn
    world.run(asked, 2500.0)
    assert all(one.waited_s < 2200.0 for one in asked)
    assert not world.refused
    assert sum(world.loads.values()) <= len(asked) * 2 + len(world.sites)


@settings(max_examples=10, deadline=None)
@given(worlds())
def test_equal_worlds_go_equal_ways(drawn: tuple[World, list[Asking]]) -> None:
    world, asked = drawn
    other = World(world.memory, [site.place for site in reversed(world.sites.values())], RULES)
    for key, site in world.sites.items():
        other.sites[key].fails = site.fails
    world.run(asked, 120.0)
    other.run([Asking(one.model, one.came_s, one.takes_s, one.tier) for one in asked], 120.0)
    assert sorted(world.log) == sorted(other.log)


def test_a_round_over_a_large_fleet_is_quick_enough() -> None:
    """Bounded work: of a thousand places where something would have to go a few are looked at."""
    hosts = [
        AgentDeployments(
            f"a{n}",
            10,
            (place("m", f"a{n}"), LoadableDeployment(f"a{n}/x", f"a{n}", "x", LOADED, 10, running=1)),
        )
        for n in range(1000)
    ]
    plan = Placement(RULES).decide([demand("m", *(host.places[0] for host in hosts))], hosts, NOW)
    assert plan.closing
    assert plan.look_again_s == pytest.approx(NOW + 1.0)
