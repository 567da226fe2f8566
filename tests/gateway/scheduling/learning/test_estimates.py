"""How many tokens a request will take."""

import pytest

from gateway.scheduling.learning.estimates import LATEST, NO_LIMIT, OutputEstimates


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
