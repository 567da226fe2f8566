"""Continuous batching with a real, tiny model: exactness, and errors that stay with their request.

Memory does not really run out here: ``spoil`` is the test hook that makes the model's forward pass raise what
torch raises then, for every step that holds a chosen token.
"""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers.generation.continuous_batching.requests import GenerationOutput

from agent.engines.torch import batching, models
from agent.engines.torch.errors import ComputationFailed, ModelUnusable, OutOfMemory
from agent.engines.torch.generation import Prompt, TextGenerator
from agent.engines.torch.manager import ResilientManager
from agent.engines.torch.models import LoadedModel
from agent.engines.torch.parsing import Sampling
from agent.engines.torch.startup import EngineOptions
from agent.engines.torch.text import plain_text
from shared.process.request_errors import RequestError
from tests.agent.engines.torch.reading import begin, next_text, rest_of
from tests.agent.engines.torch.spoil import POISON, spoil

SLOTS = 8
Texts = list[str | RequestError]


@pytest.fixture(scope="module")
def computing(tiny_directory: Path) -> Iterator[tuple[LoadedModel, ResilientManager]]:
    torch.set_num_threads(1)
    model = models.load(EngineOptions(model=tiny_directory, name="tiny", device="cpu", slots=SLOTS))
    model, manager = batching.start(model)
    yield model, manager
    assert manager.halt(timeout_s=5.0)


def prompts(count: int) -> list[list[int]]:
    """Prompts of 3 to 300 tokens: of less than a page, and of more than a step."""
    lengths = [3, 9, 31, 32, 33, 70, 130, 300]
    return [
        [(17 * n + 5 * number + n * n) % 200 for n in range(lengths[number % len(lengths)])]
        for number in range(count)
    ]


async def generate(
    computing: tuple[LoadedModel, ResilientManager],
    wanted: list[list[int]],
    *,
    sampling: Sampling | None = None,
    max_tokens: int = 24,
) -> Texts:
    """All texts of ``wanted``, computed together."""
    model, manager = computing
    texts = TextGenerator(
        manager, partial(plain_text, model.tokenizer), eos_ids=model.eos_ids, slots=len(wanted)
    )
    manager.deliver_to(asyncio.get_running_loop(), texts)

    async def one(ids: list[int]) -> str | RequestError:
        prompt = Prompt(ids=tuple(ids), max_tokens=max_tokens, sampling=sampling or Sampling())
        try:
            return await rest_of(begin(texts, prompt))
        except RequestError as error:
            return error

    async with asyncio.timeout(60):
        return list(await asyncio.gather(*map(one, wanted)))


async def alone(
    computing: tuple[LoadedModel, ResilientManager], wanted: list[list[int]], **how: Any
) -> Texts:
    return [(await generate(computing, [ids], **how))[0] for ids in wanted]


async def test_greedy_text_is_the_same_alone_and_in_any_batch(
    computing: tuple[LoadedModel, ResilientManager],
) -> None:
    wanted = prompts(8)
    expected = await alone(computing, wanted)
    assert all(isinstance(text, str) and len(text) == 24 for text in expected)
    assert await generate(computing, wanted) == expected
    assert await generate(computing, wanted[::-1]) == expected[::-1]
    assert await generate(computing, wanted[2:5]) == expected[2:5]


async def test_greedy_text_is_what_the_model_says_without_batching(
    computing: tuple[LoadedModel, ResilientManager],
) -> None:
    model, _ = computing
    ids = prompts(3)[2]
    with torch.inference_mode():
        found = model.network.generate(
            torch.tensor([ids]), do_sample=False, max_new_tokens=24, use_cache=False
        )
    assert await generate(computing, [ids]) == [plain_text(model.tokenizer, found[0, len(ids) :].tolist())]


async def test_seeded_text_is_the_same_alone_and_in_any_batch(
    computing: tuple[LoadedModel, ResilientManager],
) -> None:
    how: dict[str, Any] = {"sampling": Sampling(temperature=1.5, top_p=0.9, seed=11)}
    wanted = prompts(5)
    expected = await alone(computing, wanted, **how)
    assert await generate(computing, wanted, **how) == expected
    assert await generate(computing, wanted, sampling=Sampling(temperature=1.5, seed=12)) != expected


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (lambda: torch.OutOfMemoryError("CUDA out of memory"), OutOfMemory),
        (lambda: RuntimeError("DefaultCPUAllocator: can't allocate memory"), OutOfMemory),
        (MemoryError, OutOfMemory),
        (lambda: IndexError("broken"), ComputationFailed),
    ],
    ids=["cuda", "cpu", "python", "other"],
)
async def test_a_request_that_breaks_its_step_fails_alone(
    computing: tuple[LoadedModel, ResilientManager],
    error: Callable[[], Exception],
    expected: type[RequestError],
) -> None:
    model, _ = computing
    wanted = prompts(5)
    undisturbed = await generate(computing, wanted)
    poisoned = [POISON] * 150  # among those without a token yet the largest is blamed
    with spoil(model.network, error) as failed:
        texts = await generate(computing, [*wanted[:2], poisoned, *wanted[2:]])
    assert failed[0] >= 1
    assert isinstance(texts.pop(2), expected)
    assert texts == undisturbed
    assert await generate(computing, wanted) == undisturbed


async def test_a_request_that_comes_to_break_a_batch_does_not_disturb_what_it_said(
    computing: tuple[LoadedModel, ResilientManager],
) -> None:
    """Those in the middle of their texts go on from where they were."""
    model, manager = computing
    ids = prompts(4)
    undisturbed = await generate(computing, ids, max_tokens=100)
    texts = TextGenerator(manager, partial(plain_text, model.tokenizer), eos_ids=model.eos_ids, slots=SLOTS)
    manager.deliver_to(asyncio.get_running_loop(), texts)
    running = [begin(texts, Prompt(ids=tuple(p), max_tokens=100, sampling=Sampling())) for p in ids]
    said = [await next_text(one) or "" for one in running]
    with spoil(model.network, MemoryError):
        with pytest.raises(OutOfMemory):
            await begin(texts, Prompt(ids=(POISON, 1), max_tokens=5, sampling=Sampling())).next()
        for index, one in enumerate(running):
            said[index] += await rest_of(one)
    assert said == undisturbed


async def test_requests_that_do_not_fit_the_cache_together_are_all_answered(
    tiny_directory: Path, computing: tuple[LoadedModel, ResilientManager], monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = [ids[:40] for ids in prompts(4)]
    expected = await generate(computing, wanted, max_tokens=80)
    options = EngineOptions(model=tiny_directory, name="tiny", device="cpu", slots=4, max_context=128)
    model = models.load(options)
    token_bytes = batching._token_bytes(model, 256)
    monkeypatch.setattr(batching, "_free_bytes", lambda device: 200 * token_bytes)
    model, manager = batching.start(model)
    assert model.context_tokens == 128
    assert await generate((model, manager), wanted, max_tokens=80) == expected
    assert manager.halt(timeout_s=5.0)


async def test_a_model_whose_every_step_fails_ends_the_thread_with_its_reason(tiny_directory: Path) -> None:
    options = EngineOptions(model=tiny_directory, name="tiny", device="cpu", slots=2)
    model, manager = batching.start(models.load(options))
    ended: asyncio.Future[BaseException] = asyncio.get_running_loop().create_future()
    manager.on_broken = ended.set_result
    with spoil(model.network, lambda: RuntimeError("CUDA error: illegal memory access"), when=None):
        texts = await generate((model, manager), prompts(12))
    assert all(isinstance(text, RequestError) for text in texts)
    assert "illegal memory access" in str(await ended)
    assert manager.add_request([1, 2, 3]) is None


async def test_halting_fails_what_runs(tiny_directory: Path) -> None:
    options = EngineOptions(model=tiny_directory, name="tiny", device="cpu", slots=2)
    model, manager = batching.start(models.load(options))
    running = asyncio.ensure_future(generate((model, manager), prompts(2), max_tokens=200))
    await asyncio.sleep(0)
    assert await asyncio.to_thread(manager.halt, 5.0)
    assert all(isinstance(text, RequestError) for text in await running)


def test_an_architecture_that_batching_computes_wrongly_is_found_out(
    tiny_directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As if the paged cache were not read: the manager says other tokens than the plain forward pass."""
    expect = batching._expect

    def expect_otherwise(model: LoadedModel) -> list[Any]:
        return [text._replace(tokens=[3] * len(text.tokens), logits=-text.logits) for text in expect(model)]

    monkeypatch.setattr(batching, "_expect", expect_otherwise)
    model = models.load(EngineOptions(model=tiny_directory, name="tiny", device="cpu", slots=2))
    with pytest.raises(ModelUnusable, match="something else"):
        batching.start(model)


def test_no_context_worth_the_name_is_an_error(tiny_directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batching, "_free_bytes", lambda device: 10_000)
    model = models.load(EngineOptions(model=tiny_directory, name="tiny", device="cpu", slots=2))
    with pytest.raises(ModelUnusable, match="memory"):
        batching.start(model)


def test_a_containers_limit_counts(tmp_path: Path) -> None:
    assert batching._cgroup_free_bytes(tmp_path) == float("inf")
    (tmp_path / "memory.max").write_text("max\n")
    (tmp_path / "memory.current").write_text("100\n")
    assert batching._cgroup_free_bytes(tmp_path) == float("inf")
    (tmp_path / "memory.max").write_text("1000\n")
    assert batching._cgroup_free_bytes(tmp_path) == 900


async def test_a_text_that_is_read_at_its_end_is_told_of_at_its_first_token_and_its_last(
    computing: tuple[LoadedModel, ResilientManager],
) -> None:
    model, manager = computing
    told: dict[bool, list[int]] = {True: [], False: []}
    said: dict[bool, str] = {}
    for whole in told:
        texts = TextGenerator(manager, partial(plain_text, model.tokenizer), eos_ids=model.eos_ids, slots=1)
        take = texts.on_outputs

        def counting(outputs: Sequence[GenerationOutput], *, take: Any = take, whole: bool = whole) -> None:
            told[whole] += [len(output.generated_tokens) for output in outputs]
            take(outputs)

        texts.on_outputs = counting  # type: ignore[method-assign]
        manager.deliver_to(asyncio.get_running_loop(), texts)
        how: dict[str, Any] = {"max_tokens": 12, "sampling": Sampling(), "ignore_eos": True, "whole": whole}
        async with asyncio.timeout(60):
            said[whole] = await rest_of(begin(texts, Prompt(ids=(5, 6, 7), **how)))
    assert told == {True: [1, 12], False: list(range(1, 13))}
    assert said[True] == said[False] != ""
