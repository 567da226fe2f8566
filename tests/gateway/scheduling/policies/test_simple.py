"""The simple policies: each true to its own idea."""

from collections import Counter

import pytest

from gateway.scheduling import policy_named
from gateway.scheduling.base import DeploymentView, Outcome
from gateway.scheduling.learning.knowledge import Knowledge
from tests.gateway.scheduling.views import request, view


def keys(name: str, views: list[DeploymentView], count: int, knowledge: Knowledge | None = None) -> list[str]:
    """Where so many requests go that come one after the other and are over at once."""
    policy = policy_named(name, knowledge)
    chosen = []
    for number in range(count):
        (each,) = policy.assign([request(number)], views, 0.0)
        policy.placed(request(number), each.key, 0.0)
        chosen.append(each.key)
    return chosen


def test_round_robin_takes_turns_whatever_runs() -> None:
    views = [view("a", 8, 5), view("b", 8), view("c", 8)]
    assert keys("round-robin", views, 6) == ["a", "b", "c", "a", "b", "c"]


def test_least_connections_counts_requests_and_nothing_else() -> None:
    views = [view("large", 64, 3), view("small", 4, 2)]
    assert keys("least-connections", views, 1) == ["small"]


def test_weighted_gives_turns_by_slots_and_speed_and_spreads_them() -> None:
    views = [view("a", 2), view("b", 2)]
    views[0].speed = 3.0
    chosen = keys("weighted", views, 8)
    assert Counter(chosen) == {"a": 6, "b": 2}
    assert "bb" not in "".join(chosen)


def test_power_of_two_prefers_the_emptier_of_two_and_looks_at_all() -> None:
    views = [view(key, 64, 10) for key in "abc"] + [view("empty", 64)]
    chosen = Counter(keys("power-of-two", views, 200))
    assert 60 < chosen["empty"] < 140, "in half of all pairs"
    assert set(chosen) == {"a", "b", "c", "empty"}


def test_random_takes_all_alike_and_another_seed_takes_others() -> None:
    views = [view(key, 8) for key in "abcd"]
    chosen = Counter(keys("random", views, 400))
    assert min(chosen.values()) > 60
    assert keys("random", views, 20) != keys("random", views, 20, Knowledge(seed=1))


def test_response_time_prefers_who_answered_fast_and_tries_who_never_did() -> None:
    views = [view("slow", 8), view("fast", 8), view("new", 8)]
    policy = policy_named("response-time")
    for key, total_s in (("slow", 2.0), ("fast", 0.5)):
        policy.finished(request(0), key, Outcome(True, total_s), 0.0)
    policy.finished(request(0), "new", Outcome(False, 0.001), 0.0)
    assert policy.assign([request(1)], views, 0.0)[0].key == "new"
    policy.finished(request(1), "new", Outcome(True, 1.0), 0.0)
    assert policy.assign([request(2)], views, 0.0)[0].key == "fast"


def test_prefix_goes_where_half_of_the_prompt_was_read_if_there_is_such() -> None:
    views = [view("a", 8), view("reader", 8, 7)]
    knowledge = Knowledge()
    knowledge.prefixes.note_read("reader", (1, 2))
    policy = policy_named("prefix", knowledge)
    half = request(1, 1024, prefix=(1, 2, 3, 4))
    less = request(2, 1024, prefix=(1, 7, 8, 9))
    assert [policy.assign([item], views, 0.0)[0].key for item in (half, less)] == ["reader", "a"]


def test_a_session_stays_at_home_and_moves_only_with_its_home() -> None:
    views = [view(f"d{n}", 1000) for n in range(10)]
    knowledge = Knowledge(views={each.key: each for each in views})

    def homes(among: list[DeploymentView]) -> dict[int, str]:
        policy = policy_named("session", knowledge)
        return {n: policy.assign([request(n, session=f"s{n}")], among, 0.0)[0].key for n in range(100)}

    before = homes(views)
    assert len(set(before.values())) == 10
    after = homes(views[1:])
    assert all(after[n] == before[n] for n in before if before[n] != "d0")


@pytest.mark.parametrize("name", ["session", "cost"])
def test_one_session_never_swamps_a_deployment(name: str) -> None:
    views = [view(f"d{n}", 64) for n in range(4)]
    knowledge = Knowledge("m", views={each.key: each for each in views})
    policy = policy_named(name, knowledge)
    for number in range(100):
        item = request(number, 100, session="the only one")
        (each,) = policy.assign([item], views, 0.0)
        policy.placed(item, each.key, 0.0)
        chosen = knowledge.views[each.key]
        chosen.in_flight += 1
        chosen.load.begin(number, 0.0, kv_tokens=200, read_s=0.001, output_s=1.0)
    assert max(each.in_flight for each in views) <= 1.25 * 25 + 1
