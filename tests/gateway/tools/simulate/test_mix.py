"""Traffic from descriptions: what was asked for comes, the same each time."""

import statistics
from itertools import islice, pairwise

import pytest

from gateway.domain.request import Tier
from gateway.tools.simulate.inputs import BadSpec
from gateway.tools.simulate.mix import READY, Mix


def test_shares_lengths_and_rate_are_as_described() -> None:
    mix = Mix(
        "rate=50,duration=100;short:share=3,input=100-300,output=exp50;long:input=4000~0.5,output=200", 1
    )
    jobs = list(mix.jobs())
    assert len(jobs) == pytest.approx(5000, rel=0.05)
    short = [job for job in jobs if job.kind == "short"]
    long = [job for job in jobs if job.kind == "long"]
    assert len(short) == pytest.approx(3 * len(long), rel=0.1)
    assert {100 <= job.input_tokens <= 300 for job in short} == {True}
    assert statistics.mean(job.output_tokens for job in short) == pytest.approx(50, rel=0.1)
    assert statistics.median(job.input_tokens for job in long) == pytest.approx(4000, rel=0.1)
    assert {job.output_tokens for job in long} == {200}


@pytest.mark.parametrize("cv", [0.0, 1.0, 3.0])
def test_arrivals_vary_as_much_as_asked(cv: float) -> None:
    times = [job.at_s for job in Mix(f"rate=10,requests=8000,cv={cv};a:input=1,output=1", 2).jobs()]
    gaps = [after - before for before, after in pairwise(times)]
    assert len(times) == 8000
    assert statistics.mean(gaps) == pytest.approx(0.1, rel=0.12)
    assert statistics.stdev(gaps) / statistics.mean(gaps) == pytest.approx(cv, rel=0.12, abs=1e-6)


def test_prompts_share_beginnings_within_their_kind_only() -> None:
    part = "prefix=300x2,input=50,output=9"
    spec = f"rate=1,requests=300,block=128;a:{part},tenants=3;b:{part}"
    jobs = list(Mix(spec, 3).jobs())
    beginnings = {kind: {job.prefix for job in jobs if job.kind == kind} for kind in "ab"}
    assert [len(each) for each in beginnings.values()] == [2, 2]
    assert not beginnings["a"] & beginnings["b"]
    assert {(job.input_tokens, len(job.prefix)) for job in jobs} == {(350, 2)}
    assert {job.tenant for job in jobs} == {"a-0", "a-1", "a-2", "b-0"}


def test_limits_tiers_and_deadlines_are_carried() -> None:
    (job,) = Mix("rate=1,requests=1;a:input=5,output=500,max_tokens=40,tier=batch,deadline=9", 0).jobs()
    assert (job.output_tokens, job.max_tokens, job.tier, job.deadline_s) == (40, 40, Tier.BATCH, 9)


def test_a_seed_gives_the_same_requests_again() -> None:
    mix = Mix("chat", 5)
    assert list(islice(mix.jobs(), 50)) == list(islice(mix.jobs(), 50))
    assert list(islice(mix.jobs(), 50)) != list(islice(Mix("chat", 6).jobs(), 50))


@pytest.mark.parametrize("name", READY)
def test_mixes_with_a_name_give_requests(name: str) -> None:
    assert len(list(islice(Mix(name, 0).jobs(), 20))) == 20


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ("", "rate is missing"),
        ("rate=5", "0 kinds of requests"),
        ("rate=0;a:input=1,output=1", "rate must be greater than or equal to 0.000001, not '0'"),
        ("rate=x;a:input=1,output=1", "not 'x'"),
        ("rate=1,speed=2;a:input=1,output=1", "'speed=2' is not one of"),
        ("rate=1;input=1,output=1", "must begin with a name"),
        ("rate=1;a:input=1", "output is missing"),
        ("rate=1;a:input=1,output=x", "output must be N, LOW-HIGH"),
        ("rate=1;a:input=1,input=2,output=1", "input is there twice"),
        ("rate=1;a:input=9999999,output=1", "more than 1,000,000 tokens"),
        ("rate=1;a:input=1,output=1,prefix=12", "prefix must be TOKENSxCOUNT"),
        ("rate=1;a:input=1,output=1,tier=gold", "tier must be 'realtime'"),
        ("rate=1,block=0.5;a:input=1,output=1", "block must be a valid integer.*'0.5'"),
        ("rate=1;a:input=1,output=1,max_tokens=0", "max_tokens must be greater than or equal to 1, not '0'"),
        ("rate=1;a:input=1~9,output=1", "input has a sigma over 5"),
        ("rate=1,cv=nan;a:input=1,output=1", "cv must be a finite number, not 'nan'"),
    ],
)
def test_descriptions_that_say_nothing_sensible_are_told(spec: str, words: str) -> None:
    with pytest.raises(BadSpec, match=words):
        Mix(spec, 0)


def test_a_name_that_is_no_mix_is_told_those_there_are() -> None:
    with pytest.raises(BadSpec) as wrong:
        Mix("nope", 0)
    assert all(name in str(wrong.value) for name in READY)
    assert "rate=20" in str(wrong.value)
