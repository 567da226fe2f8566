"""What is told of texts instead of written: embeddings, classes, and how well two texts belong together."""

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple, TypeVar

from agent.engines.torch.classification import TokenPair, pair_tokens
from agent.engines.torch.embedding import Embedder, Vector
from agent.engines.torch.models import LoadedModel
from agent.engines.torch.vector_requests import (
    ClassifyRequest,
    EmbeddingRequest,
    RerankRequest,
    ScoreRequest,
)
from shared.process.request_errors import ContextTooLong, RouteNotFound

T = TypeVar("T")
TokenIds = Callable[[str | Sequence[int], str], list[int]]
"""The tokens of a text, or those given; the name is that of the parameter. Raises InvalidRequest."""


class Reading(NamedTuple):
    """A vector for each text, and the tokens read."""

    vectors: list[Vector]
    tokens: int


class Scores(NamedTuple):
    """A number for each pair of texts, more for those that belong together, and the tokens read."""

    scores: list[float]
    tokens: int


class TextReader:
    """Reads texts by one model. Its methods raise RequestErrors. ``vectors`` None: the model cannot."""

    def __init__(
        self, model: LoadedModel, vectors: Embedder | None, token_ids: TokenIds, thread: ThreadPoolExecutor
    ) -> None:
        self.reading = 0
        """Requests that are being computed or wait for it."""
        self._model = model
        self._vectors = vectors
        self._token_ids = token_ids
        self._thread = thread

    @property
    def routes(self) -> tuple[str, ...]:
        """Those that the model can answer. An encoder judges pairs by the cosine of their embeddings, a
        classifier of one class by reading both texts at once."""
        if self._vectors is None:
            return ()
        if self._model.labels:
            judges = ("rerank", "score") if len(self._model.labels) == 1 else ()
            return ("classify", *judges)
        return ("embeddings",) if self._model.generates else ("embeddings", "rerank", "score")

    async def embed(self, request: EmbeddingRequest) -> Reading:
        vectors = self._for("embeddings")
        return await self._read(vectors, await self._tokens(request.input, "input"), "input")

    async def classify(self, request: ClassifyRequest) -> Reading:
        """For each text the probabilities of the model's labels."""
        vectors = self._for("classify")
        return await self._read(vectors, await self._tokens(request.input, "input"), "input")

    async def rerank(self, request: RerankRequest) -> Scores:
        """For each document how well it answers the query."""
        return await self._judge("rerank", [request.query], request.texts, "documents")

    async def score(self, request: ScoreRequest) -> Scores:
        """For each pair how well it belongs together; a single first text is paired with every second one."""
        return await self._judge("score", request.text_1, request.text_2, "text_2")

    async def _judge(self, route: str, first: Sequence[str], second: Sequence[str], param: str) -> Scores:
        vectors = self._for(route)
        if not self._model.labels:
            return await self._judge_by_cosine(vectors, first, second, param)
        firsts = list(first) * (len(second) if len(first) == 1 else 1)

        def pairs() -> list[TokenPair]:
            pair = zip(firsts, second, strict=True)
            return [pair_tokens(self._model.tokenizer, one, other) for one, other in pair]

        found = await self._read(vectors, await self._in_thread(pairs), param)
        return Scores([vector[0] for vector in found.vectors], found.tokens)

    async def _judge_by_cosine(
        self, vectors: Embedder, first: Sequence[str], second: Sequence[str], param: str
    ) -> Scores:
        found = await self._read(vectors, await self._tokens([*first, *second], param), param)
        left, right = found.vectors[: len(first)], found.vectors[len(first) :]
        if len(left) == 1:
            left = left * len(right)
        products = [
            sum(a * b for a, b in zip(one, other, strict=True))
            for one, other in zip(left, right, strict=True)
        ]
        return Scores(products, found.tokens)

    def _for(self, route: str) -> Embedder:
        if self._vectors is None or route not in self.routes:
            offered = ", ".join(self.routes) or "text only"
            raise RouteNotFound(f"The model {self._model.name} is not for {route}: it gives {offered}.")
        return self._vectors

    async def _tokens(self, texts: Sequence[str | Sequence[int]], param: str) -> list[list[int]]:
        return await self._in_thread(lambda: [self._token_ids(text, param) for text in texts])

    async def _read(self, vectors: Embedder, texts: Sequence[Sequence[int]], param: str) -> Reading:
        most = self._model.context_tokens
        for index, ids in enumerate(texts):
            if len(ids) > most:
                raise ContextTooLong(
                    f"{param}[{index}] has {len(ids)} tokens; the model's maximum context length is {most}.",
                    param=param,
                )
        self.reading += 1
        try:
            return Reading(await vectors.embed(texts), sum(map(len, texts)))
        finally:
            self.reading -= 1

    async def _in_thread(self, function: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, function)
