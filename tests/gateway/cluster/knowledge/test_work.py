"""Work given by others is entered once, in whatever order their documents come."""

import random

from hypothesis import given
from hypothesis import strategies as st

from gateway.cluster.knowledge.document import Slice
from gateway.cluster.knowledge.work import SLICES, GivenWork, HeardWork
from gateway.domain.request import Tier
from gateway.scheduling.queue.foreign import WorkKey

A: WorkKey = ("llama", Tier.STANDARD, "a")
B: WorkKey = ("llama", Tier.STANDARD, "b")


def test_a_slice_is_entered_once_however_often_it_is_told() -> None:
    given_here, heard = GivenWork(), HeardWork()
    given_here.add({A: 5.0})
    assert heard.enter("g1", 1, given_here.told()) == {A: 5.0}
    assert heard.enter("g1", 1, given_here.told()) == {}
    given_here.add({A: 2.0, B: 1.0})
    assert heard.enter("g1", 1, given_here.told()) == {A: 2.0, B: 1.0}


def test_who_missed_some_documents_hears_all() -> None:
    given_here, heard = GivenWork(), HeardWork()
    for _ in range(SLICES):
        given_here.add({A: 1.0})
    assert heard.enter("g1", 1, given_here.told()) == {A: float(SLICES)}


def test_what_is_long_ago_is_left_out() -> None:
    given_here, heard = GivenWork(), HeardWork()
    for _ in range(3 * SLICES):
        given_here.add({A: 1.0})
    assert heard.enter("g1", 1, given_here.told()) == {A: float(SLICES)}


def test_without_work_nothing_new_is_told() -> None:
    given_here = GivenWork()
    given_here.add({})
    assert given_here.told() == ()


def test_a_process_that_was_started_again_begins_anew_and_its_former_one_is_not_heard() -> None:
    heard = HeardWork()
    assert heard.enter("g1", 1, [(7, {A: 5.0})]) == {A: 5.0}
    assert heard.enter("g1", 2, [(1, {A: 3.0})]) == {A: 3.0}
    assert heard.enter("g1", 1, [(8, {A: 9.0})]) == {}


def test_processes_are_told_apart() -> None:
    heard = HeardWork()
    assert heard.enter("g1", 1, [(1, {A: 5.0})]) == {A: 5.0}
    assert heard.enter("g2", 1, [(1, {A: 5.0})]) == {A: 5.0}
    heard.forget_all_but(["g2"])
    assert heard.enter("g2", 1, [(1, {A: 5.0})]) == {}
    assert heard.enter("g1", 1, [(1, {A: 5.0})]) == {A: 5.0}


@given(
    given=st.lists(st.floats(-100, 100).filter(bool), min_size=1, max_size=SLICES),
    order=st.lists(st.integers(0, SLICES - 1), max_size=20),
    seed=st.integers(0, 99),
)
def test_the_sum_is_the_same_in_every_order(given: list[float], order: list[int], seed: int) -> None:
    """Every document is told at least once, some of them often, none in its order."""
    given_here = GivenWork()
    documents: list[tuple[Slice, ...]] = []
    for work in given:
        given_here.add({A: work})
        documents.append(tuple(given_here.told()))
    told = [*range(len(documents)), *(each for each in order if each < len(documents))]
    random.Random(seed).shuffle(told)
    heard = HeardWork()
    sums = [work for each in told for work in heard.enter("g1", 1, documents[each]).values()]
    assert abs(sum(sums) - sum(given)) < 1e-9
