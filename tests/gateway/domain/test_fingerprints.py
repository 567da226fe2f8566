"""Fingerprints of prompts."""

from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.domain.fingerprints import MOST_BLOCKS, fingerprints


@settings(max_examples=60)
@given(st.binary(max_size=60), st.binary(max_size=60), st.binary(max_size=60))
def test_two_prompts_share_fingerprints_exactly_as_far_as_they_share_whole_blocks(
    shared: bytes, one: bytes, other: bytes
) -> None:
    first, second = shared + one, shared + other
    chains = fingerprints(first, 8), fingerprints(second, 8)
    assert [len(chain) for chain in chains] == [len(first) // 8, len(second) // 8]
    for depth in range(1, min(map(len, chains)) + 1):
        alike = first[: depth * 8] == second[: depth * 8]
        assert (chains[0][depth - 1] == chains[1][depth - 1]) == alike


def test_equal_blocks_at_other_places_are_other_fingerprints() -> None:
    assert len(set(fingerprints(b"a" * 8 * 1024))) == 8


def test_fingerprints_are_the_same_in_every_process() -> None:
    assert fingerprints(b"x" * 1024) == (12327296894230799524,)


def test_of_an_endless_prompt_only_the_beginning_counts() -> None:
    assert len(fingerprints(bytes(4 * (MOST_BLOCKS + 10)), 4)) == MOST_BLOCKS
