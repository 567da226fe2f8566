"""Sequences one by one and together have the same attention."""

import asyncio
import shutil
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM, MistralConfig, MistralForCausalLM
from transformers.generation.continuous_batching.continuous_api import ContinuousBatchProcessor

from agent.engines.torch import batching, decoding, models, paged_attention
from agent.engines.torch.generation import Prompt, TextGenerator
from agent.engines.torch.parsing import Sampling
from agent.engines.torch.startup import EngineOptions
from agent.engines.torch.text import plain_text
from tests.agent.engines.torch.reading import begin, rest_of
from tests.support import tiny_model

SIZES: dict[str, Any] = {
    "vocab_size": 258,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "initializer_range": 0.5,
    "eos_token_id": None,
}
PROMPTS = [[(7 * n + 3 * length) % 250 for n in range(length)] for length in (3, 70, 9, 31)]
ALIKE = [[(7 * n + 3 * place) % 250 for n in range(length)] for place, length in enumerate((9, 9, 9, 31))]


def compare(found: dict[str, tuple[list[str], int]]) -> None:
    """``found``: the texts of each way, and how many calls that took."""
    assert found["one by one"][0] == found["together"][0]
    assert found["one by one"][1] > 2 * found["together"][1]
    assert found["one by one, alike"][0] == found["together, alike"][0]
    assert found["one by one, alike"][1] < 2.5 * found["together, alike"][1], "three of them are a batch"
    assert found["filled up"][0] == found["together"][0]
    assert found["filled up, alike"][0] == found["together, alike"][0]
    assert found["side by side"][0] == found["together"][0]
    assert found["side by side, alike"][0] == found["together, alike"][0]


@pytest.mark.parametrize(
    "make",
    [
        lambda: LlamaForCausalLM(LlamaConfig(**SIZES)),
        lambda: MistralForCausalLM(MistralConfig(**SIZES, sliding_window=16)),
    ],
    ids=["grouped heads", "sliding window"],
)
async def test_texts_are_the_same_and_the_same_as_the_models_own(
    tiny_directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make: Callable[[], Any]
) -> None:
    torch.set_num_threads(1)
    torch.manual_seed(5)
    tiny_model.save(make(), tmp_path)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(tiny_directory / name, tmp_path)
    model = models.load(EngineOptions(model=tmp_path, name="m", device="cpu", slots=4))
    model, manager = batching.start(model)
    calls: list[int] = []
    beginning = threading.Lock()  # all are in the first batch: the number of calls depends on it
    forward, prepare = paged_attention._sdpa, ContinuousBatchProcessor.prepare_next_batch

    def counting(module: Any, query: torch.Tensor, *arguments: Any, **options: Any) -> Any:
        calls.append(query.size(2))
        return forward(module, query, *arguments, **options)

    def prepared(processor: ContinuousBatchProcessor) -> bool:
        with beginning:
            return bool(prepare(processor))

    async def texts(prompts: list[list[int]]) -> list[str]:
        decode = partial(plain_text, model.tokenizer)
        generator = TextGenerator(manager, decode, eos_ids=model.eos_ids, slots=4)
        manager.deliver_to(asyncio.get_running_loop(), generator)
        how: dict[str, Any] = {"max_tokens": 20, "sampling": Sampling(), "ignore_eos": True}
        with beginning:
            begun = [begin(generator, Prompt(ids=tuple(ids), **how)) for ids in prompts]
        return list(await asyncio.gather(*map(rest_of, begun)))

    monkeypatch.setattr(paged_attention, "_sdpa", counting)
    monkeypatch.setattr(ContinuousBatchProcessor, "prepare_next_batch", prepared)
    monkeypatch.setattr(decoding, "FILL_SHARE", -1.0)  # every step is the library's
    found = {}
    for way, pairs in (("together", 10**9), ("one by one", -(10**9))):
        monkeypatch.setattr(paged_attention, "_CALL_PAIRS", pairs)
        calls.clear()
        found[way] = await texts(PROMPTS), len(calls)
        calls.clear()
        found[f"{way}, alike"] = await texts(ALIKE), len(calls)
    monkeypatch.setattr(paged_attention, "FILL_SHARE", 100.0)
    monkeypatch.setattr(paged_attention, "_CALL_PAIRS", 10**9)
    for way, prompts in (("filled up", PROMPTS), ("filled up, alike", ALIKE)):
        calls.clear()
        found[way] = await texts(prompts), len(calls)
    monkeypatch.setattr(decoding, "FILL_SHARE", 100.0)
    for way, prompts in (("side by side", PROMPTS), ("side by side, alike", ALIKE)):
        found[way] = await texts(prompts), 0
    assert manager.halt(timeout_s=5.0)
    compare(found)
    said = [*found["one by one"][0], *found["one by one, alike"][0]]
    for ids, text in zip([*PROMPTS, *ALIKE], said, strict=True):
        with torch.inference_mode():
            own = model.network.generate(
                torch.tensor([ids]), do_sample=False, max_new_tokens=20, use_cache=False
            )
        half = "\ufffd"  # the end may be half a character
        assert text.rstrip(half) == plain_text(model.tokenizer, own[0, len(ids) :].tolist()).rstrip(half)
