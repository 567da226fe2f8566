"""Texts that begin, end and are given up beside others are what they are alone by the library's own steps."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from agent.engines.torch import batching, decoding, models, paged_attention
from agent.engines.torch.answers import TextAnswer
from agent.engines.torch.decoding import Decoder, Workspace
from agent.engines.torch.errors import ModelUnusable, OutOfMemory
from agent.engines.torch.generation import Prompt, TextGenerator
from agent.engines.torch.manager import ResilientManager
from agent.engines.torch.models import LoadedModel
from agent.engines.torch.parsing import Sampling
from agent.engines.torch.startup import EngineOptions
from agent.engines.torch.text import plain_text
from tests.agent.engines.torch.reading import begin, next_text, rest_of
from tests.agent.engines.torch.spoil import POISON, spoil

Computing = tuple[LoadedModel, ResilientManager]

PROMPTS = [[(17 * n + 5 * length) % 200 for n in range(length)] for length in (40, 31, 33, 64, 50)]
LENGTHS = (150, 20, 70, 40, 5)
"""The tokens of each text. The first outgrows its workspace twice, and the others end beside it."""


@pytest.fixture(scope="module")
def computing(tiny_directory: Path) -> Iterator[Computing]:
    torch.set_num_threads(1)
    model = models.load(EngineOptions(model=tiny_directory, name="tiny", device="cpu", slots=8))
    model, manager = batching.start(model)
    yield model, manager
    assert manager.halt(timeout_s=5.0)


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many texts each workspace was made for that was made meanwhile."""
    found: list[int] = []

    class Counted(Workspace):
        def __init__(self, states: Any, allocator: Any) -> None:
            found.append(len(states))
            super().__init__(states, allocator)

    monkeypatch.setattr(decoding, "Workspace", Counted)
    return found


def texts_of(computing: Computing) -> TextGenerator:
    model, manager = computing
    decode = partial(plain_text, model.tokenizer)
    texts = TextGenerator(manager, decode, eos_ids=model.eos_ids, slots=8)
    manager.deliver_to(asyncio.get_running_loop(), texts)
    return texts


def prompt(place: int, **how: Any) -> Prompt:
    given: dict[str, Any] = {"max_tokens": LENGTHS[place], "sampling": Sampling(), "ignore_eos": True} | how
    return Prompt(ids=tuple(PROMPTS[place]), **given)


@pytest.fixture(scope="module")
def known() -> dict[Sampling, list[str]]:
    """What the library has computed already."""
    return {}


@pytest.fixture
def by_the_library(
    computing: Computing, monkeypatch: pytest.MonkeyPatch, known: dict[Sampling, list[str]]
) -> Callable[[Sampling], Awaitable[list[str]]]:
    """Computes each text alone, without a workspace."""

    async def compute(sampling: Sampling) -> list[str]:
        if sampling not in known:
            with monkeypatch.context() as changed:
                changed.setattr(Decoder, "_takes", lambda self, requests: False)
                texts = texts_of(computing)
                begun = (begin(texts, prompt(place, sampling=sampling)) for place in range(len(PROMPTS)))
                known[sampling] = [await rest_of(each) for each in begun]
        return known[sampling]

    return compute


@pytest.fixture
async def expected(by_the_library: Callable[[Sampling], Awaitable[list[str]]], made: list[int]) -> list[str]:
    """Each text, greedily, by the library."""
    found = await by_the_library(Sampling())
    assert made == []
    return found


@pytest.mark.parametrize(
    "sampling", [Sampling(), Sampling(temperature=1.2, top_p=0.9, seed=7)], ids=["greedy", "sampled"]
)
async def test_texts_that_join_and_leave_are_what_they_are_alone(
    computing: Computing,
    by_the_library: Callable[[Sampling], Awaitable[list[str]]],
    made: list[int],
    sampling: Sampling,
) -> None:
    expected = await by_the_library(sampling)
    assert made == []
    texts = texts_of(computing)
    running = [begin(texts, prompt(0, sampling=sampling))]
    said = [await next_text(running[0]) or ""]
    for place in range(1, len(PROMPTS)):
        running.append(begin(texts, prompt(place, sampling=sampling)))
        said.append(await next_text(running[-1]) or "")
    async with asyncio.timeout(60):
        rest = await asyncio.gather(*map(rest_of, running))
    assert [first + more for first, more in zip(said, rest, strict=True)] == expected
    assert max(made) > 1
    assert made[-1] == 1, "the longest goes on alone"


async def test_a_text_alone_makes_a_workspace_only_where_the_last_one_is_full(
    computing: Computing, expected: list[str], made: list[int]
) -> None:
    assert await rest_of(begin(texts_of(computing), prompt(0))) == expected[0]
    # 40 tokens of prompt and the answer's first 149 have keys; there is room for 64, then 128, then 192.
    assert made == [1, 1, 1]


async def test_a_text_that_is_given_up_leaves_the_others_as_they_are(
    computing: Computing, expected: list[str], made: list[int]
) -> None:
    texts = texts_of(computing)
    running: list[TextAnswer] = [begin(texts, prompt(place)) for place in (0, 2, 3)]
    for _ in range(3):
        await next_text(running[1])
    running[1].close()
    async with asyncio.timeout(60):
        assert await rest_of(running[0]) == expected[0]
        assert await rest_of(running[2]) == expected[3]
        # What it has left in the cache is whole: a text with the same beginning goes on from there.
        assert await rest_of(begin(texts, prompt(2))) == expected[2]
    assert max(made) > 1


async def test_texts_go_on_after_a_step_that_failed(
    computing: Computing, expected: list[str], made: list[int]
) -> None:
    texts = texts_of(computing)
    running = begin(texts, prompt(0))
    said = await next_text(running) or ""
    with spoil(computing[0].network, MemoryError) as failed:
        with pytest.raises(OutOfMemory):
            await begin(texts, Prompt(ids=(POISON, 1), max_tokens=5, sampling=Sampling())).next()
        assert said + await rest_of(running) == expected[0]
    assert failed[0] >= 1
    assert made


async def test_what_goes_on_from_anothers_answer_reads_what_was_kept_of_it(
    computing: Computing, monkeypatch: pytest.MonkeyPatch, made: list[int]
) -> None:
    """The answer's pages are shared by their content with a prompt that repeats it."""
    texts = texts_of(computing)
    state: list[int] = []
    take = texts.on_outputs

    def noting(outputs: Any) -> None:
        state[:] = outputs[-1].generated_tokens
        take(outputs)

    monkeypatch.setattr(texts, "on_outputs", noting)
    await rest_of(begin(texts, prompt(0)))
    whole = list(state)
    assert made
    longer = Prompt(
        ids=(*PROMPTS[0], *whole[:100]), max_tokens=20, sampling=Sampling(), ignore_eos=True, continued=100
    )
    await rest_of(begin(texts, longer))
    assert state == whole[100:120]


async def test_texts_of_too_different_lengths_or_too_many_tokens_take_the_librarys_steps(
    computing: Computing, monkeypatch: pytest.MonkeyPatch, expected: list[str], made: list[int]
) -> None:
    processor = computing[1].batch_processor
    assert processor is not None
    decoder = processor.inputs_and_outputs.prepare_batch_tensors.__self__  # type: ignore[attr-defined]
    monkeypatch.setattr(decoder, "_most_tokens", 63)
    assert await rest_of(begin(texts_of(computing), prompt(1))) == expected[1]
    assert made == []
    monkeypatch.setattr(decoder, "_most_tokens", 64)
    assert await rest_of(begin(texts_of(computing), prompt(1))) == expected[1]
    assert made == [1]


def test_a_model_whose_attention_wants_more_is_computed_by_the_librarys_steps(
    tiny_directory: Path, monkeypatch: pytest.MonkeyPatch, log_records: list[logging.LogRecord]
) -> None:
    def failing(self: Workspace, layer: int, key: torch.Tensor, value: torch.Tensor) -> Any:
        raise NotImplementedError("another attention")

    monkeypatch.setattr(Workspace, "update", failing)
    model = models.load(EngineOptions(model=tiny_directory, name="tiny", device="cpu", slots=2))
    _, manager = batching.start(model)
    assert manager.workspace_tokens == 0
    assert any("take the longer way" in each.getMessage() for each in log_records)
    assert manager.halt(timeout_s=5.0)


def test_a_workspace_that_computes_otherwise_is_found_out(
    tiny_directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    update = Workspace.update

    def wrong(self: Workspace, layer: int, key: torch.Tensor, value: torch.Tensor) -> Any:
        keys, values = update(self, layer, key, value)
        return keys, -values

    monkeypatch.setattr(Workspace, "update", wrong)
    model = models.load(EngineOptions(model=tiny_directory, name="tiny", device="cpu", slots=2))
    budget, expected = batching._budget(model), batching._expect(model)
    paged_attention.install()
    manager, unusable = batching._started(model, budget, expected)
    assert manager is None
    assert isinstance(unusable, ModelUnusable)
    assert "something else" in str(unusable)
