"""A deployment that another gateway has ejected is probed, and what is seen here counts more."""

from gateway.scheduling.health.suspicion import SUSPECT_S, TRUSTED_S, Suspicion


def test_it_gets_one_request_more_until_that_has_shown_something() -> None:
    suspicion = Suspicion()
    assert suspicion.hint(0.0)
    assert suspicion.cap(3) == 4
    suspicion.started("probe")
    assert suspicion.cap(4) == 4
    suspicion.released("other")
    assert suspicion.cap(3) == 3
    suspicion.released("probe")
    assert suspicion.cap(3) == 4, "its client left, and the next one may go"


def test_the_head_of_the_probes_answer_ends_it() -> None:
    suspicion = Suspicion()
    assert not suspicion.answered("r", 0.0)
    suspicion.hint(0.0)
    suspicion.started("probe")
    assert not suspicion.answered("of before", 1.0)
    assert suspicion.answered("probe", 1.0)
    assert not suspicion.active


def test_any_whole_answer_ends_it() -> None:
    suspicion = Suspicion()
    assert not suspicion.succeeded(0.0)
    suspicion.hint(0.0)
    assert suspicion.succeeded(1.0)
    assert not suspicion.active


def test_time_ends_it() -> None:
    suspicion = Suspicion()
    suspicion.hint(5.0)
    suspicion.advance(5.0 + SUSPECT_S - 0.1)
    assert suspicion.active
    suspicion.advance(5.0 + SUSPECT_S)
    assert not suspicion.active


def test_hints_about_one_that_has_just_succeeded_say_nothing() -> None:
    suspicion = Suspicion()
    suspicion.hint(0.0)
    assert not suspicion.hint(1.0), "it is suspect already"
    suspicion.succeeded(2.0)
    assert not suspicion.hint(2.0 + TRUSTED_S - 0.1)
    assert suspicion.hint(2.0 + TRUSTED_S)


def test_after_a_failure_here_its_circuit_says_the_rest() -> None:
    suspicion = Suspicion()
    suspicion.hint(0.0)
    suspicion.confirmed()
    assert not suspicion.active
    assert suspicion.hint(1.0), "it is not trusted"
