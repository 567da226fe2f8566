"""Who has read which beginnings of prompts."""

from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.scheduling.learning.prefix import (
    LEAST_BLOCKS,
    STEPS,
    PrefixIndex,
)


def test_a_match_is_as_long_as_the_common_beginning() -> None:
    index = PrefixIndex()
    index.note_read("a", (1, 2, 3, 4))
    index.note_read("a", (1, 2, 5))
    for chain, blocks in (((1, 2, 3, 9), 3), ((1, 2, 5, 6), 3), ((1, 9, 10), 1), ((7, 3), 0), ((), 0)):
        assert index.matched_blocks("a", chain) == blocks
    assert index.matched_blocks("b", (1, 2)) == 0


def test_the_longest_match_comes_first_and_then_those_of_more_deployments() -> None:
    index = PrefixIndex()
    chain = tuple(range(100))
    for key, blocks in (("a", 100), ("b", 60), ("c", 60), ("d", 1)):
        index.note_read(key, chain[:blocks])
    assert [(blocks, set(keys)) for blocks, keys in index.longest_matches(chain)] == [
        (100, {"a"}),
        (60, {"a", "b", "c"}),
        (1, {"a", "b", "c", "d"}),
    ]
    assert index.longest_matches((1000,)) == []


def test_what_is_gone_is_gone() -> None:
    index = PrefixIndex()
    index.note_read("a", (1, 2))
    index.note_read("b", (1,))
    index.forget("a")
    index.forget("never there")
    assert index.longest_matches((1, 2)) == [(1, {"b": None})]
    assert len(index) == 1
    assert len(index._holders) == 1


def test_the_ends_of_chains_are_forgotten_first_and_what_was_used_long_ago() -> None:
    index = PrefixIndex(deployment_blocks=LEAST_BLOCKS)
    index.note_read("a", tuple(range(100)))
    index.note_read("a", tuple(range(1000, 1060)))
    assert index.matched_blocks("a", tuple(range(100))) == LEAST_BLOCKS - 60
    assert index.matched_blocks("a", tuple(range(1000, 1060))) == 60


def test_a_deployment_that_keeps_little_is_remembered_for_little() -> None:
    index = PrefixIndex()
    index.note_read("a", tuple(range(100)), most=10)
    assert index.matched_blocks("a", tuple(range(100))) == 10


def test_many_deployments_share_the_room_there_is() -> None:
    index = PrefixIndex(total_blocks=4 * LEAST_BLOCKS)
    for deployment in range(8):
        index.note_read(f"d{deployment}", tuple(range(deployment * 1000, deployment * 1000 + 900)))
    for deployment in range(8):
        index.note_read(f"d{deployment}", (deployment * 1000,))
    assert len(index) == 8 * LEAST_BLOCKS


_chains = st.lists(st.integers(0, 2), min_size=0, max_size=8).map(
    lambda branches: tuple(
        int("1" + "".join(map(str, branches[: depth + 1]))) for depth in range(len(branches))
    )
)
"""Chains as fingerprints make them: equal members mean equal beginnings."""


@settings(max_examples=60)
@given(st.lists(st.tuples(st.sampled_from("abc"), _chains, st.integers(0, 9)), max_size=25), _chains)
def test_matches_are_always_beginnings_and_steps_tell_the_truth(
    history: list[tuple[str, tuple[int, ...], int]], chain: tuple[int, ...]
) -> None:
    index = PrefixIndex()
    for key, seen, what in history:
        if what == 9:
            index.forget(key)
        else:
            index.note_read(key, seen, most=6)
    for key, remembered in index._blocks.items():
        for block in remembered:
            assert block < 100 or block // 10 in remembered, "its beginning is there too"
            assert key in index._holders[block]
        assert len(remembered) <= 6
    steps = index.longest_matches(chain)
    assert len(steps) <= STEPS
    matched = {key: index.matched_blocks(key, chain) for key in "abc"}
    assert max(matched.values()) == (steps[0][0] if steps else 0)
    for blocks, keys in steps:
        assert set(keys) == {key for key, found in matched.items() if found >= blocks}
