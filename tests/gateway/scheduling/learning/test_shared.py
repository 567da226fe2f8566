"""Several processes learn speeds together: in any order, and nothing twice."""

import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.scheduling.base import Outcome
from gateway.scheduling.learning.performance import Performance, PredictedWork
from gateway.scheduling.learning.shared import LEAST_WEIGHT, MOST_ORIGINS, SharedSpeeds, SpeedEvidence
from gateway.scheduling.load import Concurrency

HERE = {"g1": 1, "g2": 1, "g3": 1}
ASKED = PredictedWork(0, 500, 500, 100, 1.0, 2.0)
ALONE = Concurrency(0.0, 1.0, 600.0, 0.0)


class Process:
    def __init__(self, name: str, incarnation: int = 1) -> None:
        self.performance = Performance()
        self.shared = SharedSpeeds(self.performance, name, incarnation)

    def serve(self, times: int, total_s: float, model: str = "llama") -> None:
        speeds, chance = self.performance.speeds(model, "h100"), random.Random(1)
        for _ in range(times):
            tokens = chance.randrange(50, 200)
            took = Outcome(True, 0.1 + tokens * total_s / 100, 0.1, 500, tokens)
            self.performance.learn(speeds, ASKED, took, ALONE)

    def hear(self, *told: SpeedEvidence) -> None:
        self.shared.take_up(told)
        self.shared.apply()

    def told(self, **present: int) -> list[SpeedEvidence]:
        return self.shared.told(HERE | present)

    def step_s(self, model: str = "llama", device: str = "h100") -> float:
        speeds = self.performance.speeds(model, device)
        return speeds.step_s + speeds.each_s


def test_one_that_has_seen_nothing_knows_what_another_has_learnt() -> None:
    first, second = Process("g1"), Process("g2")
    first.serve(100, 10.0)
    second.hear(*first.told())
    assert second.step_s() == pytest.approx(first.step_s(), rel=0.05)
    assert [each.process for each in second.told()] == ["g1"], "and does not tell it as its own"
    third = Process("g3")
    third.hear(*first.told())
    assert third.told() == [], "one other tells it beside"


def test_what_is_told_often_counts_once() -> None:
    first, once, often = Process("g1"), Process("g2"), Process("g3")
    first.serve(20, 10.0)
    once.hear(*first.told())
    for _ in range(5):
        often.hear(*first.told())
    assert often.step_s() == once.step_s()
    assert often.performance.speeds("llama", "h100").reading.known == 20


def test_the_own_evidence_that_comes_back_does_not_count() -> None:
    first = Process("g1")
    first.serve(50, 10.0)
    before = first.step_s()
    first.hear(*first.told())
    assert first.step_s() == before
    assert first.performance.speeds("llama", "h100").reading.known == 50


def test_later_evidence_of_a_process_takes_the_place_of_earlier_and_not_the_other_way() -> None:
    first, second = Process("g1"), Process("g2")
    first.serve(10, 10.0)
    early = first.told()
    first.serve(90, 10.0)
    second.hear(*first.told())
    second.hear(*early)
    assert second.performance.speeds("llama", "h100").reading.known == 100


def test_one_that_was_started_again_knows_what_it_knew_from_those_who_heard_it() -> None:
    first, second = Process("g1"), Process("g2")
    first.serve(100, 10.0)
    second.hear(*first.told())
    again = Process("g1", incarnation=2)
    again.hear(*second.told(g1=2))
    assert again.step_s() == pytest.approx(first.step_s(), rel=0.05)


def test_what_several_tell_of_one_that_is_gone_counts_once() -> None:
    gone, first, second = Process("g1"), Process("g2"), Process("g3")
    gone.serve(100, 10.0)
    for each in (first, second):
        each.hear(*gone.told())
    new = Process("g4")
    new.hear(*first.told(g1=2), *second.told(g1=2))
    assert new.performance.speeds("llama", "h100").reading.known == 100


def test_what_one_that_is_gone_knew_counts_less_with_each_outcome_here() -> None:
    gone, first = Process("g1"), Process("g2")
    gone.serve(100, 10.0)
    first.hear(*gone.told())
    first.serve(20, 10.0)
    own, relayed = first.told(g1=2)
    assert (own.process, own.weight, relayed.process) == ("g2", 1.0, "g1")
    assert relayed.weight < 0.95
    first.serve(900, 40.0)
    assert [each.process for each in first.told(g1=2)] == ["g2"], f"less than {LEAST_WEIGHT} is left"
    assert first.step_s() == pytest.approx(_learnt(40.0), rel=0.1)


def _learnt(total_s: float) -> float:
    process = Process("x")
    process.serve(300, total_s)
    return process.step_s()


def test_what_is_far_from_what_was_seen_here_is_not_believed() -> None:
    liar, honest = Process("g1"), Process("g2")
    liar.serve(200, 2000.0)
    honest.serve(100, 10.0)
    before = honest.step_s()
    honest.hear(*liar.told())
    assert honest.step_s() == pytest.approx(before, rel=0.05)


def test_more_answers_are_news_where_prompts_teach_nothing() -> None:
    """First tokens that come within the round trip are learnt nothing from."""
    first, second = Process("g1"), Process("g2")
    first.serve(10, 10.0)
    (early,) = first.told()
    first.serve(50, 40.0)
    (late,) = first.told()
    second.hear(replace(early, reading=None))
    second.hear(replace(late, reading=None))
    assert second.performance.speeds("llama", "h100").writing.known == 60


def test_what_was_heard_of_one_class_is_lent_to_others() -> None:
    first, second = Process("g1"), Process("g2")
    first.serve(100, 100.0)
    second.hear(*first.told())
    assert second.step_s("llama", "a100") > 5 * Process("x").step_s("llama", "a100")


def test_memory_is_bounded_whoever_tells() -> None:
    first, second = Process("g1"), Process("g2")
    first.serve(10, 10.0)
    (told,) = first.told()
    many = [SpeedEvidence(f"p{number}", 1, "llama", "h100", told.reading) for number in range(100)]
    second.hear(*many)
    assert second.performance.speeds("llama", "h100").reading.known == 10 * MOST_ORIGINS


def test_little_is_applied_at_a_time_where_that_is_asked_for() -> None:
    first, second = Process("g1"), Process("g2")
    for number in range(5):
        first.serve(10, 10.0, f"m{number}")
    second.shared.take_up(first.told())
    second.shared.apply(2)
    assert len(list(second.performance)) == 2
    second.shared.apply(2)
    second.shared.apply(2)
    assert len(list(second.performance)) == 5


@settings(max_examples=30, deadline=None)
@given(order=st.permutations(range(6)), again=st.lists(st.integers(0, 5), max_size=6))
def test_neither_order_nor_repetition_changes_what_is_known(order: list[int], again: list[int]) -> None:
    told: list[SpeedEvidence] = []
    for number, name in enumerate(("g1", "g2", "g3")):
        process = Process(name)
        process.serve(10, 5.0 + number)
        told += process.told()
        process.serve(10, 5.0 + number)
        told += process.told()
    expected, found = Process("g4"), Process("g4")
    expected.hear(*told)
    for place in [*order, *again]:
        found.hear(told[place])
    assert found.step_s() == pytest.approx(expected.step_s(), rel=1e-9)
    assert found.performance.speeds("llama", "h100").reading.known == 60
