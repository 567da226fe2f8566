"""The table of policies, once and small."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from gateway.tools.simulate.inputs import Job
from gateway.tools.simulate.policies import choices
from gateway.tools.simulate.simulation import simulate
from tests.bench.policies import AZURE, CASES, Case, Part, Settings, plan_of, pooled, run, verdict

(ROUND_ROBIN,) = choices("round-robin")
MIX = "rate=20,requests=40;chat:input=300~0.5,output=20,prefix=256x2"


class These:
    block_tokens = 512

    def __init__(self, *jobs: Job) -> None:
        self._jobs = jobs

    def jobs(self):  # type: ignore[no-untyped-def]
        return iter(self._jobs)


def test_every_policy_of_a_case_is_told_with_all_its_figures(tmp_path: Path) -> None:
    table = run([Case("small", MIX, "1*h100,1*l4")], Settings(policies="cost,round-robin,clairvoyant"))
    told = str(table)
    assert "**small**: 40 requests, `1*h100,1*l4`. `cost`: TTFT p99 " in told
    assert told.count("\n| `") == 3
    figures = json.loads(table.to_json())["cases"]["small"]["round-robin"]
    assert figures["completed"] == 40
    table.plot(tmp_path)
    assert "round-robin" in (tmp_path / "simulated-small.svg").read_text()


def test_the_halves_of_a_trace_have_nothing_in_common_and_copies_are_laid_over_each_other() -> None:
    traffic = These(*(Job(float(number), number + 1, 1, (number,)) for number in range(10)))
    first, second = (list(Part(traffic, *part).jobs()) for part in ((0, 5), (5, 10)))
    assert [job.input_tokens for job in first] == [1, 2, 3, 4, 5]
    assert [(job.input_tokens, job.at_s) for job in second] == [(6 + n, float(n)) for n in range(5)]
    copied = list(Part(traffic, 0, 5, copies=2).jobs())
    assert [job.at_s for job in copied] == sorted(job.at_s for job in copied)
    assert sorted(job.input_tokens for job in copied) == sorted([1, 2, 3, 4, 5] * 2)
    assert len({job.prefix for job in copied}) == 10, "no copy has read what another has"
    assert copied[0].input_tokens != copied[1].input_tokens, "each begins elsewhere"


def test_a_fleet_pooled_reads_as_fast_as_all_of_it_together() -> None:
    one = Case("one", "rate=1,requests=1;chat:input=20000,output=1", "1*h100")
    eight = replace(one, fleet="8*h100")
    alone, together = (simulate(pooled(plan_of(case, Settings())), ROUND_ROBIN) for case in (one, eight))
    ttft_s = [figures.tally.ttft.percentile_s(1.0) for figures in (alone, together)]
    assert ttft_s[0] == pytest.approx(8 * ttft_s[1], rel=0.05)


def test_a_verdict_is_about_the_best_of_the_others_at_each_goal() -> None:
    def figures(ttft_s: float, latency_s: float, good: float) -> dict[str, object]:
        return {"ttft_s": {"p99": ttft_s}, "latency_s": {"p99": latency_s}, "goodput_rps": good}

    told = verdict({"cost": figures(1, 9, 8), "a": figures(2, 12, 1), "b": figures(4, 10, 1)})
    assert told == "`cost`: TTFT p99 -50% beside a, latency p99 -10% beside b."
    assert not verdict({"a": figures(1, 1, 1)})


def test_a_trace_that_is_not_there_is_said(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=AZURE):
        plan_of(CASES[0], replace(Settings(), data=tmp_path))
