"""Embeddings: one thread computes what waits in batches, the event loop waits for its vectors."""

import asyncio
import json
import logging
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import torch

from agent.engines.torch.errors import FAILURES_IN_A_ROW, Stopping, is_out_of_memory, request_error
from agent.engines.torch.models import LoadedModel

_log = logging.getLogger(__name__)

_WINDOW_TEXTS = 256
"""Texts looked at together: they are sorted by length and cut into batches, so that little of a batch is
padding."""

CPU_BATCH_TOKENS = 2048
CUDA_BATCH_TOKENS = 32_768
"""Most tokens of one batch, padding included; a single longer text is a batch of its own."""

_BATCH_TEXTS = 64

Vector = list[float]

Compute = Callable[[Sequence[Sequence[int]]], list[Vector]]
"""Vectors for a batch of token id lists, in their order."""


@dataclass(eq=False, slots=True)
class _Job:
    """One request: its vectors as they become known."""

    vectors: list[Vector]
    done: "asyncio.Future[list[Vector]]"
    """Already done if its reader has gone."""
    missing: int


class _Text(NamedTuple):
    job: _Job
    place: int
    """Which of the request's texts it is."""
    ids: Sequence[int]


class Embedder:
    """Runs ``compute`` in a thread of its own, a batch at a time. Admission limits how much may wait."""

    def __init__(self, compute: Compute, batch_tokens: int) -> None:
        self.compute = compute
        self.batches = 0
        self.texts = 0
        self.out_of_memory = 0
        """How many batches and texts were computed, and how many texts were given up for want of memory."""
        self.on_broken: Callable[[BaseException], None] = lambda error: None
        """Called when nothing can be computed any more."""
        self.on_batch: Callable[[int], None] = lambda texts: None
        """Called with how many texts were in each batch."""
        self._batch_tokens = batch_tokens
        self._failed_texts = 0
        self._texts: deque[_Text] = deque()
        self._stopped = False
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="embedding")
        self._working: asyncio.Task[None] | None = None
        """Runs as long as texts wait."""

    def stop(self) -> None:
        """Take nothing more; the thread ends after the batch it is at, and what waits fails."""
        self._stopped = True
        self._thread.shutdown(wait=False, cancel_futures=True)

    async def embed(self, texts: Sequence[Sequence[int]]) -> list[Vector]:
        """The vectors of ``texts``, each a non-empty list of token ids within the model's context.

        Cancelling lets go of what was not computed yet. Raises a RequestError.
        """
        if self._stopped:
            raise Stopping("The engine is stopping; send the request again.")
        loop = asyncio.get_running_loop()
        job = _Job([[]] * len(texts), loop.create_future(), len(texts))
        self._texts.extend(_Text(job, place, ids) for place, ids in enumerate(texts))
        if self._working is None or self._working.done():
            self._working = loop.create_task(self._work(), name="embedding")
        return await job.done

    async def _work(self) -> None:
        while self._texts:
            window = [self._texts.popleft() for _ in range(min(len(self._texts), _WINDOW_TEXTS))]
            for batch in batches(window, self._batch_tokens):
                await self._compute(batch)

    async def _compute(self, batch: Sequence[_Text]) -> None:
        """One batch; if memory does not do for it, its halves, down to the single text that is then
        failed."""
        batch = [text for text in batch if not text.job.done.done()]
        if self._stopped:
            for job in {text.job for text in batch}:
                job.done.set_exception(Stopping("The engine is stopping."))
        if self._stopped or not batch:
            return
        ids = [text.ids for text in batch]
        try:
            vectors = await asyncio.get_running_loop().run_in_executor(self._thread, self.compute, ids)
        except Exception as error:
            if is_out_of_memory(error) and torch.cuda.is_available():
                torch.cuda.empty_cache()
            if len(batch) > 1:
                await self._compute(batch[: len(batch) // 2])
                await self._compute(batch[len(batch) // 2 :])
            else:
                self._give_up(batch[0].job, error)
            return
        self._failed_texts = 0
        self.batches += 1
        self.texts += len(batch)
        self.on_batch(len(batch))
        for text, vector in zip(batch, vectors, strict=True):
            text.job.vectors[text.place] = vector
            text.job.missing -= 1
            if text.job.missing == 0 and not text.job.done.done():
                text.job.done.set_result(text.job.vectors)

    def _give_up(self, job: _Job, error: Exception) -> None:
        memory = is_out_of_memory(error)
        self.out_of_memory += 1 if memory else 0
        self._failed_texts += 0 if memory else 1
        _log.error("embedding given up: %s", error, exc_info=None if memory else error)
        if not job.done.done():
            job.done.set_exception(request_error(error))
        if self._failed_texts > FAILURES_IN_A_ROW:
            self.on_broken(error)


def batches(texts: Sequence[_Text], most_tokens: int) -> Iterator[list[_Text]]:
    """Cut ``texts`` into batches of like length whose padded size stays within ``most_tokens``."""
    batch: list[_Text] = []
    for text in sorted(texts, key=lambda text: len(text.ids)):
        if batch and (len(batch) == _BATCH_TEXTS or len(text.ids) * (len(batch) + 1) > most_tokens):
            yield batch
            batch = []
        batch.append(text)
    if batch:
        yield batch


def embedder(model: LoadedModel) -> Embedder:
    """An embedder over the model's hidden states."""
    pooling = pooling_of(model.directory)
    pad = model.tokenizer.pad_token_id or 0
    options = {"use_cache": False} if model.generates else {}

    @torch.inference_mode()
    def compute(batch: Sequence[Sequence[int]]) -> list[Vector]:
        longest = max(len(ids) for ids in batch)
        ids = torch.tensor([[*ids, *[pad] * (longest - len(ids))] for ids in batch], device=model.device)
        lengths = torch.tensor([len(ids) for ids in batch], device=model.device)
        mask = torch.arange(longest, device=model.device) < lengths.unsqueeze(-1)
        hidden = model.encoder(input_ids=ids, attention_mask=mask.long(), **options).last_hidden_state
        vectors = pooled(hidden.float(), mask, pooling)
        found: list[Vector] = torch.nn.functional.normalize(vectors, dim=-1).cpu().tolist()
        return found

    cuda = model.device.type == "cuda"
    return Embedder(compute, CUDA_BATCH_TOKENS if cuda else CPU_BATCH_TOKENS)


def pooled(hidden: torch.Tensor, mask: torch.Tensor, pooling: str) -> torch.Tensor:
    """One vector for each row. ``hidden`` (rows, tokens, width), ``mask`` (rows, tokens) true for real
    tokens, which come first in each row."""
    if pooling == "cls":
        return hidden[:, 0]
    if pooling == "lasttoken":
        return hidden[torch.arange(hidden.size(0), device=hidden.device), mask.sum(dim=1) - 1]
    weights = mask.unsqueeze(-1).to(hidden.dtype)
    return (hidden * weights).sum(dim=1) / weights.sum(dim=1)


def pooling_of(directory: Path) -> str:
    """``mean``, unless the directory is a sentence-transformers model that says ``cls`` or ``lasttoken``."""
    try:
        settings = json.loads((directory / "1_Pooling" / "config.json").read_bytes())
    except (OSError, ValueError):
        return "mean"
    if settings.get("pooling_mode_cls_token"):
        return "cls"
    return "lasttoken" if settings.get("pooling_mode_lasttoken") else "mean"
