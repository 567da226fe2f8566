"""What a fit of the engine model finds, without an engine."""

from dataclasses import replace

import pytest

from tests.bench.validate import (
    BATCHES,
    LENGTHS,
    Fit,
    Validation,
    fit,
    mix,
    predicted,
    reading,
    writing,
)

TRUE = Fit(sent_s=0.004, step_s=0.01, token_s=0.0003, context_s=1e-6, pair_s=1e-7)


def test_a_fit_finds_what_times_were_made_of() -> None:
    seen = [reading(tokens, 1.0) for tokens in LENGTHS] + [writing(batch, 40.0, 1.0) for batch in BATCHES]
    timed = [replace(each, took_s=TRUE.expects(each)) for each in seen]
    found = fit(timed)
    assert [found.expects(each) for each in timed] == pytest.approx([each.took_s for each in timed], rel=0.02)
    assert found.token_s == pytest.approx(TRUE.token_s, rel=0.1)


def test_the_mix_is_what_the_device_can_do_and_both_sides_are_told() -> None:
    jobs = mix(TRUE, 40, 1)
    assert len(jobs) == 40
    assert all(job.input_tokens + job.output_tokens < 1024 for job in jobs)
    said = predicted(TRUE, jobs)
    assert 0 < said["ttft"][0] <= said["ttft"][1] < said["latency"][1]
    told = str(Validation(TRUE, 0.05, 40, {"ttft": (0.1, 0.2)}, {"ttft": (0.1, 0.3)}))
    assert "ttft p95: measured 0.200 s, predicted 0.300 s (+50%)" in told
