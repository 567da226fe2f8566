"""Who accepts connections for workers that are away."""

from hypothesis import given
from hypothesis import strategies as st

from gateway.runtime.workers.covering import Covering


def test_one_that_is_away_is_covered_until_its_successor_serves() -> None:
    covering = Covering[str](2)
    assert covering.update({0: "a", 1: "b"}) == ([], [])
    assert covering.update({0: "a"}) == ([("a", 1)], [])
    assert covering.update({0: "a"}) == ([], [])
    assert covering.update({0: "a", 1: "b2"}) == ([], [("a", 1)])


def test_the_first_worker_covers_all_others_while_they_start() -> None:
    covering = Covering[str](3)
    assert covering.update({}) == ([], [])
    assert covering.update({0: "a"}) == ([("a", 1), ("a", 2)], [])
    assert covering.update({0: "a", 2: "c"}) == ([], [("a", 2)])


def test_another_one_takes_over_from_one_that_covers_and_ends_itself() -> None:
    covering = Covering[str](3)
    covering.update({0: "a", 1: "b"})
    assert covering.update({1: "b"}) == ([("b", 0), ("b", 2)], [])
    assert covering.update({1: "b", 0: "a2"}) == ([], [("b", 0)])


def test_a_worker_that_was_replaced_is_not_told_to_release() -> None:
    covering = Covering[str](2)
    covering.update({0: "a"})
    assert covering.update({0: "a-next"}) == ([("a-next", 1)], [])


def test_places_are_spread_over_those_that_serve() -> None:
    covering = Covering[str](4)
    covering.update({0: "a", 1: "b", 2: "c", 3: "d"})
    cover, _ = covering.update({0: "a", 1: "b"})
    assert sorted(cover) == [("a", 2), ("b", 3)]


@given(st.lists(st.dictionaries(st.integers(0, 3), st.integers(0, 3))))
def test_each_place_is_served_or_covered_by_exactly_one_that_serves(steps: list[dict[int, int]]) -> None:
    covering, told = Covering[tuple[int, int]](4), set[tuple[tuple[int, int], int]]()
    for step in steps:
        serving = {place: (place, generation) for place, generation in step.items()}
        told = {each for each in told if each[0] in serving.values()}  # the others are gone
        cover, release = covering.update(serving)
        assert not set(cover) & told
        assert set(release) <= told
        told = (told | set(cover)) - set(release)
        covered = sorted(place for _, place in told)
        assert covered == [place for place in range(4) if place not in serving and serving]
