"""Who may tell what of speeds, and what is refused."""

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.cluster.knowledge.document import Told, ToldEvidence, ToldSpeeds, encode, read
from gateway.cluster.knowledge.speeds import evidence_of, told_evidence
from gateway.scheduling.learning.shared import SpeedEvidence
from tests.gateway.scheduling.learning.test_shared import Process

PRESENT = {"g1": 4, "g2": 1}


def evidence(process: str = "g1", incarnation: int = 4) -> SpeedEvidence:
    learnt = Process(process, incarnation)
    learnt.serve(50, 10.0)
    (told,) = learnt.told()
    return told


def heard(told: ToldSpeeds, teller: str = "g1", incarnation: int = 4) -> list[SpeedEvidence]:
    document = read(encode(Told(incarnation, 1, speeds=[told])))
    assert not document.unread
    return evidence_of(teller, document, PRESENT)


def test_what_is_told_is_heard_to_six_digits() -> None:
    learnt = evidence()
    (found,) = heard(told_evidence(learnt))
    assert (found.process, found.incarnation, found.model, found.device) == ("g1", 4, "llama", "h100")
    assert found.reading is not None
    assert learnt.reading is not None
    assert found.reading.products == pytest.approx(learnt.reading.products, rel=1e-5)
    assert found.writing is not None
    assert learnt.writing is not None
    assert found.writing.rest == pytest.approx(learnt.writing.rest, rel=1e-5)


@pytest.mark.parametrize(
    ("process", "incarnation", "accepted"),
    [("g1", 4, True), ("g1", 3, True), ("g2", 1, False), ("g2", 2, False), ("gone", 9, True)],
)
def test_a_process_speaks_for_itself_and_for_those_that_are_no_more(
    process: str, incarnation: int, accepted: bool
) -> None:
    assert bool(heard(told_evidence(evidence(process, incarnation)))) is accepted


def test_what_one_told_before_it_was_started_again_is_heard_of_its_former_self() -> None:
    (found,) = heard(told_evidence(evidence("g1", 3)), "g1", 3)
    assert found.incarnation == 3


def test_evidence_that_no_outcomes_give_is_left_out() -> None:
    told = told_evidence(evidence())
    assert told.reading is not None
    assert told.writing is not None
    reading, writing = (replace(each, products=[-1.0] * 10) for each in (told.reading, told.writing))
    (found,) = heard(replace(told, reading=reading))
    assert found.reading is None
    assert found.writing is not None
    assert heard(replace(told, reading=reading, writing=writing)) == []


def test_one_whose_first_tokens_come_too_fast_to_learn_from_is_told_by_its_answers() -> None:
    (found,) = heard(replace(told_evidence(evidence()), reading=None))
    assert found.reading is None
    assert found.count == 50


def test_the_device_is_taken_for_its_class() -> None:
    (found,) = heard(replace(told_evidence(evidence()), device="NVIDIA H100 80GB HBM3"))
    assert found.device == "h100"


_sum = st.floats(-1e15, 1e15)
_evidence = st.builds(
    ToldEvidence,
    count=st.integers(1, 2**53),
    common=st.floats(0, 1e6, exclude_min=True),
    products=st.lists(_sum, min_size=10, max_size=10),
    rest=st.lists(_sum, min_size=4, max_size=4),
)


@given(
    reading=_evidence,
    writing=st.none() | _evidence,
    weight=st.floats(0, 1, exclude_min=True),
    others=st.lists(_evidence, max_size=3),
)
def test_whatever_a_process_tells_speeds_stay_positive_and_finite(
    reading: ToldEvidence, writing: ToldEvidence | None, weight: float, others: list[ToldEvidence]
) -> None:
    here = Process("g9")
    told = [ToldSpeeds("g1", 4, "llama", "h100", reading, writing, weight)]
    told += [ToldSpeeds("gone", number, "llama", "h100", each, each) for number, each in enumerate(others)]
    here.hear(*evidence_of("g1", Told(4, 1, speeds=told), PRESENT))
    here.serve(3, 5.0)
    speeds = here.performance.speeds("llama", "h100")
    values = (speeds.token_s, speeds.pair_s, speeds.cached_s, speeds.step_s, speeds.each_s, speeds.kv_s)
    assert all(0.0 < each < math.inf for each in values)
