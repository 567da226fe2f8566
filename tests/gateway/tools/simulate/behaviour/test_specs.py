"""Whatever is written in an option, it is understood or refused with the one documented error."""

from contextlib import suppress
from itertools import islice

from hypothesis import given
from hypothesis import strategies as st

from gateway.tools.simulate.fleet import device_count, fleet_of, fleet_text
from gateway.tools.simulate.inputs import BadSpec
from gateway.tools.simulate.mix import Mix
from gateway.tools.simulate.policies import choices
from gateway.tools.simulate.simulation import goals_of

counts = ["1", "0", "5", "0.5", "1e9", "1e-9", "nan", "inf", "-1"]
lengths = ["100-300", "300-100", "400~0.8", "400~9", "exp50", "exp0", "1024x2", "0x0"]
values = st.sampled_from([*counts, *lengths, "batch", "x"])


def members(*names: str) -> st.SearchStrategy[str]:
    """Some of them with some values."""
    chosen = st.dictionaries(st.sampled_from(names), values, max_size=3)
    return chosen.map(lambda each: ",".join(f"{name}={value}" for name, value in each.items()))


mixes = st.builds(
    "rate=1,{};a:output=5,input=9,{};b:input=9,output=5,{}".format,
    members("duration", "requests", "cv", "block"),
    members("share", "prefix", "tenants", "tier"),
    members("max_tokens", "deadline", "prefix"),
)


@given(st.one_of(st.text(max_size=40), mixes))
def test_any_mix_makes_requests_or_is_refused(spec: str) -> None:
    with suppress(BadSpec):
        for job in islice(Mix(spec, 0).jobs(), 5):
            assert job.input_tokens >= 1
            assert job.output_tokens >= 1
            assert 0 <= job.at_s < float("inf")


@given(st.integers(1, 99), st.sampled_from(["exp1", "1-1000000", "1000000~5", "1~5"]), st.integers(0, 9))
def test_lengths_stay_within_what_a_request_may_have(rate: int, tokens: str, seed: int) -> None:
    for job in islice(Mix(f"rate={rate};a:input={tokens},output={tokens}", seed).jobs(), 20):
        assert 1 <= job.input_tokens <= 1_000_000


@given(st.one_of(st.text(max_size=30), st.text("0123456789*hl4,@ms.", max_size=20)))
def test_any_fleet_is_read_or_refused(spec: str) -> None:
    with suppress(BadSpec):
        fleet = fleet_of(spec)
        assert device_count(fleet) > 0
        assert fleet_of(fleet_text(fleet)) == fleet


@given(st.text(max_size=30))
def test_any_policies_and_goals_are_known_or_refused(text: str) -> None:
    for read in (choices, goals_of):
        with suppress(BadSpec):
            read(text)
