"""Embeddings: batching, pooling, and one text's error."""

import asyncio
import json
import threading
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

from agent.engines.torch.embedding import Embedder, Vector, pooled, pooling_of
from agent.engines.torch.errors import FAILURES_IN_A_ROW, ComputationFailed, OutOfMemory, Stopping


class Played:
    """Computes a text's length, noting batches; waits for ``go`` before the first."""

    def __init__(self) -> None:
        self.batches: list[list[int]] = []
        self.entered = threading.Event()
        self.go = threading.Event()
        self.go.set()

    def __call__(self, batch: Sequence[Sequence[int]]) -> list[Vector]:
        self.entered.set()
        self.go.wait(10)
        self.batches.append([len(ids) for ids in batch])
        if any(13 in ids for ids in batch):
            raise MemoryError
        if any(99 in ids for ids in batch):
            raise ValueError("broken")
        return [[float(len(ids))] for ids in batch]


@pytest.fixture
def played() -> Played:
    return Played()


@pytest.fixture
def embedder(played: Played) -> Embedder:
    return Embedder(played, batch_tokens=20)


async def test_vectors_come_in_the_order_of_their_texts(embedder: Embedder) -> None:
    texts = [[1] * 5, [1], [1] * 9, [1] * 2]
    assert await embedder.embed(texts) == [[5.0], [1.0], [9.0], [2.0]]
    embedder.stop()


async def test_requests_that_wait_share_batches_of_like_length(embedder: Embedder, played: Played) -> None:
    played.go.clear()
    sizes: list[int] = []
    embedder.on_batch = sizes.append
    first = asyncio.ensure_future(embedder.embed([[1]]))
    await asyncio.to_thread(played.entered.wait)  # the thread holds the first, so the others meet waiting
    others = [asyncio.ensure_future(embedder.embed([[1] * n])) for n in (9, 1, 10, 2, 1)]
    await asyncio.sleep(0)
    played.go.set()
    assert [await job for job in (first, *others)] == [[[float(n)]] for n in (1, 9, 1, 10, 2, 1)]
    assert played.batches == [[1], [1, 1, 2], [9, 10]]
    assert sizes == [1, 3, 2]
    embedder.stop()


async def test_memory_that_fails_a_batch_fails_only_the_text_that_is_too_much(embedder: Embedder) -> None:
    outcomes = await asyncio.gather(
        embedder.embed([[1, 1]]),
        embedder.embed([[13]]),
        embedder.embed([[99, 1, 1]]),
        embedder.embed([[1]]),
        return_exceptions=True,
    )
    assert outcomes[0] == [[2.0]]
    assert isinstance(outcomes[1], OutOfMemory)
    assert isinstance(outcomes[2], ComputationFailed)
    assert outcomes[3] == [[1.0]]
    assert embedder.out_of_memory == 1
    embedder.stop()


async def test_an_embedder_that_can_compute_nothing_says_so(embedder: Embedder) -> None:
    broken: list[BaseException] = []
    embedder.on_broken = broken.append
    for _ in range(FAILURES_IN_A_ROW):
        with pytest.raises(ComputationFailed):
            await embedder.embed([[99]])
    assert broken == []
    with pytest.raises(ComputationFailed):
        await embedder.embed([[99]])
    embedder.stop()
    assert len(broken) == 1


async def test_what_nobody_waits_for_is_not_computed(embedder: Embedder, played: Played) -> None:
    played.go.clear()
    first = asyncio.ensure_future(embedder.embed([[1]]))
    await asyncio.to_thread(played.entered.wait)
    late = asyncio.ensure_future(embedder.embed([[1] * 8]))
    await asyncio.sleep(0)
    late.cancel()
    await asyncio.gather(late, return_exceptions=True)
    played.go.set()
    await first
    assert await embedder.embed([[1]]) == [[1.0]]
    assert [8] not in played.batches
    embedder.stop()


async def test_stopping_fails_what_waits(embedder: Embedder, played: Played) -> None:
    played.go.clear()
    first = asyncio.ensure_future(embedder.embed([[1]]))
    await asyncio.to_thread(played.entered.wait)
    late = asyncio.ensure_future(embedder.embed([[1] * 8]))
    await asyncio.sleep(0)
    embedder.stop()
    played.go.set()
    assert await first == [[1.0]]
    with pytest.raises(Stopping):
        await late
    with pytest.raises(Stopping):
        await embedder.embed([[1]])


def test_padding_does_not_count() -> None:
    hidden = torch.tensor([[[1.0], [3.0], [100.0]], [[2.0], [4.0], [6.0]]])
    mask = torch.tensor([[True, True, False], [True, True, True]])
    assert pooled(hidden, mask, "mean").tolist() == [[2.0], [4.0]]
    assert pooled(hidden, mask, "cls").tolist() == [[1.0], [2.0]]
    assert pooled(hidden, mask, "lasttoken").tolist() == [[3.0], [6.0]]


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        (None, "mean"),
        ({"pooling_mode_mean_tokens": True}, "mean"),
        ({"pooling_mode_cls_token": True}, "cls"),
        ({"pooling_mode_lasttoken": True}, "lasttoken"),
    ],
)
def test_pooling_is_what_a_sentence_model_says(
    tmp_path: Path, settings: dict[str, bool] | None, expected: str
) -> None:
    if settings is not None:
        (tmp_path / "1_Pooling").mkdir()
        (tmp_path / "1_Pooling" / "config.json").write_text(json.dumps(settings))
    assert pooling_of(tmp_path) == expected
