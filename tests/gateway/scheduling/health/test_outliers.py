"""Who is far slower than its peers."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.scheduling.health.outliers import AnswerPace, Measure, outliers


def pace(
    first_byte_s: float = 0.2, total_s: float = 2.0, samples: int = 10, streaming: bool = True
) -> AnswerPace:
    pace = AnswerPace()
    for _ in range(samples):
        pace.note(streaming, first_byte_s, total_s, 1000)
    return pace


def test_three_times_the_median_of_its_peers_is_an_outlier() -> None:
    peers = {name: pace() for name in "abc"}
    assert outliers(peers | {"d": pace(first_byte_s=0.59, total_s=2.39)}) == []
    assert outliers(peers | {"d": pace(first_byte_s=0.61, total_s=2.41)}) == ["d"]
    assert outliers(peers | {"d": pace(total_s=6.0)}) == ["d"], "slow between bytes"


def test_peers_that_may_be_of_several_kinds_are_held_against_what_is_usual_for_them_too() -> None:
    peers = {name: pace() for name in "abc"}
    assert outliers(peers | {"slow": pace(first_byte_s=9.0, samples=100)}, alike=False) == []
    slowed = pace(samples=100)
    for _ in range(30):
        slowed.note(True, 9.0, 10.8, 1000)
    assert outliers(peers | {"slowed": slowed}, alike=False) == ["slowed"]
    slowed.clear()
    for _ in range(10):
        slowed.note(True, 9.0, 10.8, 1000)
    assert outliers(peers | {"slowed": slowed}, alike=False) == ["slowed"], "still, after it was set aside"


def test_too_few_peers_or_samples_judge_nobody() -> None:
    slow = pace(first_byte_s=9.0)
    assert outliers({"a": pace(), "b": pace(), "slow": slow}) == []
    assert outliers({"a": pace(), "b": pace(), "c": pace(samples=9), "slow": slow}) == []
    assert outliers({"a": pace(), "b": pace(), "c": pace(), "slow": pace(9.0, samples=9)}) == []


def test_streams_and_answers_in_one_piece_are_kept_apart() -> None:
    peers = {name: pace() for name in "abc"}
    assert outliers(peers | {"d": pace(total_s=20.0, streaming=False)}) == []
    peers = {name: pace(streaming=False) for name in "abc"}
    assert outliers(peers | {"d": pace(total_s=20.0, streaming=False)}) == ["d"]


def test_nobody_is_slow_who_is_fast_enough() -> None:
    peers = {name: pace(first_byte_s=0.002) for name in "abc"}
    assert outliers(peers | {"d": pace(first_byte_s=0.05)}) == []


def test_the_worst_are_first() -> None:
    peers = {str(number): pace() for number in range(6)}
    assert outliers(peers | {"bad": pace(1.0), "worse": pace(5.0)}) == ["worse", "bad"]


def test_heavy_tails_alone_make_no_outlier() -> None:
    chance = random.Random(7)
    paces = {number: AnswerPace() for number in range(50)}
    for _ in range(40):
        for each in paces.values():
            first_byte_s = 10.0 if chance.random() < 0.02 else chance.uniform(0.1, 0.3)
            each.note(True, first_byte_s, first_byte_s + chance.uniform(1, 10), chance.randint(500, 5000))
    assert outliers(paces) == []


@given(st.lists(st.floats(0.001, 100), min_size=2, max_size=12))
def test_outliers_are_what_the_definition_says(times: list[float]) -> None:
    paces = {number: pace(time_s, time_s) for number, time_s in enumerate(times)}
    means = {
        number: each.latest[Measure.STREAM_FIRST_BYTE_S].value() or 0.0 for number, each in paces.items()
    }
    expected = set()
    for number, mean in means.items():
        peers = sorted(other for key, other in means.items() if key != number)
        if len(peers) >= 3:
            median = (peers[(len(peers) - 1) // 2] + peers[len(peers) // 2]) / 2
            if mean > 3 * median and mean > 0.1:
                expected.add(number)
    assert set(outliers(paces)) == expected


def test_an_average_follows_what_changes() -> None:
    changing = pace(first_byte_s=0.1, samples=50)
    for _ in range(40):
        changing.note(True, 1.0, 2.0, 1000)
    assert changing.latest[Measure.STREAM_FIRST_BYTE_S].value() == pytest.approx(1.0, rel=0.05)
    changing.clear()
    assert changing.latest[Measure.STREAM_FIRST_BYTE_S].value() is None
