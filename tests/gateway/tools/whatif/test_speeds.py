"""How fast a model is taken to be, and where that is said to be from."""

import pytest

from gateway.scheduling.learning.devices import Prior
from gateway.tools.whatif.speeds import UNLIMITED_TOKENS, SpeedOrigin, performance_of, speeds_there
from tests.gateway.tools.whatif.kit import fleet, learnt

H100, L4 = Prior.of("h100"), Prior.of("l4")


def test_what_was_measured_is_taken_as_it_is() -> None:
    known = fleet(speeds=[learnt(times=2.0)]).speeds
    found = speeds_there("m", "h100", known)
    assert (found.origin, "100 answers" in found.words) == (SpeedOrigin.MEASURED, True)
    assert found.tokens_per_s == pytest.approx(1 / (2 * (H100.step_s + H100.each_s)))
    pace = found.pace(8, None)
    assert (pace.token_s, pace.max_running, pace.kv_tokens) == (2 * H100.token_s, 8, UNLIMITED_TOKENS)
    assert pace.step_s + pace.token_s + pace.each_s == pytest.approx(1 / found.tokens_per_s)


def test_few_answers_are_said_to_be_few() -> None:
    found = speeds_there("m", "h100", fleet(speeds=[learnt(answers=3)]).speeds)
    assert (found.origin, "only 3 answers" in found.words) == (SpeedOrigin.FEW, True)
    one = speeds_there("m", "h100", fleet(speeds=[learnt(answers=1)]).speeds)
    assert "only 1 answer of" in one.words


def test_another_class_is_scaled_by_public_figures_and_says_so() -> None:
    known = fleet(speeds=[learnt(times=3.0)]).speeds
    found = speeds_there("m", "l4", known)
    assert found.origin is SpeedOrigin.SCALED
    assert "NVIDIA L4 datasheet" in found.words
    assert "h100" in found.words
    assert found.prompt_tokens_per_s == pytest.approx(1 / (3 * L4.token_s))


def test_without_any_answer_it_is_said_what_it_is_taken_for() -> None:
    assert speeds_there("m", "l4", []).origin is SpeedOrigin.PUBLIC
    assert "8 billion parameters" in speeds_there("m", "l4", []).words
    others = speeds_there("m", "l4", fleet(speeds=[learnt("other", "l4", times=2.0)]).speeds)
    assert (others.origin, "other" in others.words) == (SpeedOrigin.OTHER_MODELS, True)
    assert "none of my-npu are known" in speeds_there("m", "my-npu", []).words


def test_what_is_given_counts_and_is_named() -> None:
    found = speeds_there("m", "l4", []).at(40.0, 5000.0)
    assert found.origin is SpeedOrigin.GIVEN
    assert (found.tokens_per_s, found.prompt_tokens_per_s) == pytest.approx((40.0, 5000.0))
    part = speeds_there("m", "l4", []).at(40.0, None)
    assert "40 tokens/s" in part.words
    assert "8 billion" in part.words
    assert speeds_there("m", "l4", []).at(None, None).origin is SpeedOrigin.PUBLIC


def test_the_simulated_gateway_begins_with_what_the_real_one_has_learnt() -> None:
    known = speeds_there("m", "h100", fleet(speeds=[learnt(times=2.0)]).speeds)
    speeds = performance_of([known]).speeds("m", "h100")
    assert (speeds.token_s, speeds.step_s) == (2 * H100.token_s, 2 * H100.step_s)
