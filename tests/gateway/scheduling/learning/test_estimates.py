"""How many tokens a request will take."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.scheduling.learning.estimates import (
    LATEST,
    MOST_SAID,
    NO_LIMIT,
    OutputEstimate,
    OutputEstimates,
)


def learn(estimates: OutputEstimates, lengths: list[int], tenant: str = "t", model: str = "m") -> None:
    for length in lengths:
        estimates.learn(model, tenant, output_tokens=length)


def test_tokens_per_byte_are_learnt_per_model() -> None:
    estimates = OutputEstimates()
    assert estimates.input_tokens("m", 4000) == 1000
    for _ in range(200):
        estimates.learn("m", "t", size_bytes=1000, input_tokens=500)
    assert estimates.input_tokens("m", 4000) == pytest.approx(2000, rel=0.02)
    assert estimates.input_tokens("other", 4000) == 1000


def test_what_is_no_ratio_changes_little() -> None:
    estimates = OutputEstimates()
    for size_bytes, tokens in ((0, 100), (100, 0), (-1, 5), (1, 10**9), (10**9, 1), (100, None)):
        estimates.learn("m", "t", size_bytes=size_bytes, input_tokens=tokens)
    assert 0 < estimates.input_tokens("m", 1000) <= 2000


def test_an_answer_is_expected_to_be_as_long_as_this_tenants_lately() -> None:
    estimates = OutputEstimates()
    assert estimates.output("m", "t", None, guess=300).expected == 300
    learn(estimates, [20] * 100)
    learn(estimates, [900] * 100, tenant="writer")
    assert estimates.output("m", "t").expected == pytest.approx(20, abs=60)
    assert estimates.output("m", "writer").expected == pytest.approx(900, abs=60)
    assert 300 < estimates.output("m", "somebody new").expected < 800
    learn(estimates, [500] * LATEST)
    assert estimates.output("m", "t").expected == pytest.approx(500, abs=40)


def test_no_answer_is_longer_than_its_request_allows() -> None:
    estimates = OutputEstimates()
    learn(estimates, [100] * 64 + [2000] * 64)
    short, free = estimates.output("m", "t", 200), estimates.output("m", "t")
    assert short.high == 200
    assert short.expected == pytest.approx(150, abs=10), "half of them would be cut"
    assert free.expected == pytest.approx(1050, rel=0.1)
    assert free.high == pytest.approx(2000, rel=0.1)
    assert estimates.output("m", "t", 0) == estimates.output("m", "t", -5)
    assert estimates.output("m", "t", 0).high == 0
    assert estimates.output("m", "t", NO_LIMIT) == free


def cut(estimates: OutputEstimates, lengths: list[int]) -> None:
    for length in lengths:
        estimates.learn("m", "t", output_tokens=length, most_tokens=length)


def test_an_answer_that_was_cut_does_not_make_longer_ones_shorter() -> None:
    estimates = OutputEstimates()
    cut(estimates, list(range(20, 600, 10)))
    for most_tokens in (20, 57, 300, 590):
        assert estimates.output("m", "t", most_tokens, most_tokens) == OutputEstimate(
            most_tokens, most_tokens
        )


def test_answers_that_were_allowed_to_go_on_say_how_many_do() -> None:
    estimates = OutputEstimates()
    for _ in range(LATEST // 4):
        cut(estimates, [1, 100])
        estimates.learn("m", "t", output_tokens=50, most_tokens=100)
        estimates.learn("m", "t", output_tokens=200)
    found = estimates.output("m", "t", guess=150)
    share = 2 / 3  # of the three that went on after one token, one ended with 50 and one with 200
    assert found.expected == pytest.approx(50 + share * 150, rel=0.05)
    assert found.high == pytest.approx(200, rel=0.05)
    assert estimates.output("m", "t", 100, 100).expected == pytest.approx(50 + share * 50, rel=0.05)
    assert estimates.output("m", "t", 25, 25).expected == 25


def test_an_answer_whose_end_nobody_saw_is_as_long_as_was_guessed() -> None:
    estimates = OutputEstimates()
    cut(estimates, [1] * LATEST)
    assert estimates.output("m", "t", guess=256) == OutputEstimate(256, 256)
    assert estimates.output("m", "t", 40, 256) == OutputEstimate(40, 40)
    cut(estimates, [500] * LATEST)
    assert estimates.output("m", "t", guess=256).expected == pytest.approx(500, abs=10)


def test_one_that_ended_before_its_limit_was_not_cut() -> None:
    estimates = OutputEstimates()
    for _ in range(LATEST):
        estimates.learn("m", "t", output_tokens=30, most_tokens=31)
    assert estimates.output("m", "t", 1000, 30).expected == 30


def test_few_answers_are_not_believed_more_than_they_deserve() -> None:
    estimates = OutputEstimates()
    learn(estimates, [4000])
    assert estimates.output("m", "t", guess=100).expected < 1500


def test_only_so_many_models_and_tenants_are_remembered() -> None:
    estimates = OutputEstimates(most_models=2, most_tenants=2)
    for model in "abc":
        estimates.learn(model, "t", size_bytes=100, input_tokens=100, output_tokens=50)
        estimates.learn("a", "t", size_bytes=100, input_tokens=100, output_tokens=50)
    assert set(estimates._inputs) == set(estimates._answers.models) == {"a", "c"}
    assert set(estimates._answers.tenants) == {("a", "t"), ("c", "t")}


ANSWERS = st.tuples(st.sampled_from(["a", "b"]), st.integers(1, 400), st.sampled_from([None, 50, 400]))


@given(st.lists(ANSWERS, min_size=1, max_size=300), st.integers(1, 7))
def test_an_estimate_that_was_remembered_is_the_one_that_is_computed_anew(
    answers: list[tuple[str, int, int | None]], every: int
) -> None:
    """Of tenants who share a model: what one's answers teach changes the other's estimates too."""
    remembering, forgetting = OutputEstimates(), OutputEstimates()
    for step, (tenant, tokens, most) in enumerate(answers * (1 + 2 * LATEST // len(answers))):
        for estimates in (remembering, forgetting):
            estimates.learn("m", tenant, output_tokens=tokens, most_tokens=most)
        if step % every:
            continue
        for asking in ("a", "b", "new"):
            for other in range(MOST_SAID + 1):  # more than are remembered
                forgetting.output("m", asking, NO_LIMIT + step * LATEST + other)
            assert remembering.output("m", asking, 50, 200) == forgetting.output("m", asking, 50, 200)
