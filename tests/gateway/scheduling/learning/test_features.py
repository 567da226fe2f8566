"""What requests other than text cost, and what of a request is its prompt."""

from typing import Any

import orjson
import pytest

from gateway.scheduling.learning.features import (
    audio_tokens,
    image_tokens,
    prompt_bytes,
    rerank_tokens,
    speech_tokens,
)
from gateway.scheduling.learning.prefix import fingerprints


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
