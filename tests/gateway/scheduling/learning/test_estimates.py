"""How many tokens a request will take."""

from typing import Any

import orjson
import pytest

from gateway.scheduling.learning.estimates import (
    LATEST,
    NO_LIMIT,
    OutputEstimates,
    audio_tokens,
    image_tokens,
    prompt_bytes,
    rerank_tokens,
    speech_tokens,
)
from gateway.scheduling.learning.prefix import fingerprints


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
    assert set(estimates._inputs) == set(estimates._models) == {"a", "c"}
    assert set(estimates._tenants) == {("a", "t"), ("c", "t")}


def test_pictures_cost_by_number_pixels_and_steps() -> None:
    one = image_tokens({})
    assert image_tokens({"n": 3}) == 3 * one
    assert image_tokens({"size": "512x512"}) == one / 4
    assert image_tokens({"width": 512, "height": 1024}) == one / 2
    assert image_tokens({"steps": 60}) == image_tokens({"num_inference_steps": 60}) == 2 * one


@pytest.mark.parametrize(
    "members",
    [
        {"n": "many", "size": "large", "steps": None},
        {"n": True, "size": "0x0", "steps": -3},
        {"size": "1x2x3", "width": 1.5},
        {"size": "³x³"},
    ],
)
def test_what_makes_no_sense_counts_as_if_it_were_not_said(members: dict[str, Any]) -> None:
    assert image_tokens(members) == image_tokens({})


def test_nothing_costs_without_bound() -> None:
    assert image_tokens({"n": 10**9, "steps": 10**9, "size": "999999x999999"}) < 10**12


def test_sound_documents_and_speech_cost_by_their_length() -> None:
    assert audio_tokens(160_000) == 500
    assert audio_tokens(-1) == 0
    assert speech_tokens({"input": "x" * 100}) == 400
    assert speech_tokens({"input": 5}) == 0
    ten = rerank_tokens({"query": "q" * 40, "documents": ["d"] * 10}, 100)
    assert ten == 100 + 10 * (8 + 10)
    assert rerank_tokens({"documents": "none"}, 100) == 108


def test_what_comes_before_the_prompt_in_a_body_does_not_keep_prompts_apart() -> None:
    said = [{"role": "user", "content": "hello " * 1000}]
    more = [*said, {"role": "assistant", "content": "world " * 1000}]
    tools = [{"type": "function", "function": {"name": "f"}}]
    one = prompt_bytes({"user": "a", "seed": 1, "messages": said, "tools": tools})
    other = prompt_bytes({"tools": tools, "temperature": 1, "messages": more})
    assert one.startswith(orjson.dumps(tools))
    assert fingerprints(other)[: len(fingerprints(one))] == fingerprints(one)
    assert prompt_bytes({"model": "m"}) == b""
