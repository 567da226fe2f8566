"""A text embedder behind ``/v1/embeddings``, in OpenAI's shape. It needs numpy and runs on a CPU.

    trunkline agent --gateway URL --join TOKEN --python text_embedder:TextEmbedder

Each word and each three letters of it are hashed into a vector of 256 numbers, so that texts with the same
words are near each other. To serve a trained model, load it in ``load`` and compute with it in ``predict``.
"""

import base64
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any
from zlib import crc32

import numpy

from agent.serve import BadRequest, Batch, Model, ModelRequest

DIMENSIONS = 256
MOST_TEXTS = 2048
_WORD = re.compile(r"\w+")


@dataclass(frozen=True, slots=True)
class Texts:
    """One request: for each of its texts the features, as numbers of their columns."""

    features: tuple[list[int], ...]
    words: int
    as_base64: bool


class TextEmbedder(Model):
    name = "text-embedder"
    routes = ("/v1/embeddings",)
    max_batch = 32
    max_wait_s = 0.005

    def load(self, device: str) -> None:
        """The weight of each feature, which a trained model would read from a file."""
        self._signs = numpy.where(numpy.random.default_rng(1).random(DIMENSIONS) < 0.5, -1.0, 1.0)

    def warm_up(self) -> None:
        self.predict(Batch([Texts(([1, 2, 3],), 1, False)]))

    def decode(self, request: ModelRequest) -> Texts:
        body = request.json()
        given = body.get("input") if isinstance(body, dict) else None
        texts = [given] if isinstance(given, str) else given
        if not isinstance(texts, list) or not texts or not all(isinstance(text, str) for text in texts):
            raise BadRequest("input must be a text or a list of texts.", param="input")
        if len(texts) > MOST_TEXTS:
            raise BadRequest(f"input has {len(texts)} texts; {MOST_TEXTS} are allowed.", param="input")
        features = tuple(list(_features(text)) for text in texts)
        words = sum(len(_WORD.findall(text)) for text in texts)
        return Texts(features, words, body.get("encoding_format") == "base64")

    def length(self, item: Texts) -> float:
        return max(len(features) for features in item.features)

    def predict(self, batch: Batch) -> list[Any]:
        vectors = iter(self._vectors([features for item in batch for features in item.features]))
        return [(numpy.stack([next(vectors) for _ in item.features]), item) for item in batch]

    def encode(self, output: Any) -> dict[str, Any]:
        vectors, item = output
        data = [
            {"object": "embedding", "index": index, "embedding": _written(vector, item.as_base64)}
            for index, vector in enumerate(vectors)
        ]
        usage = {"prompt_tokens": item.words, "total_tokens": item.words}
        return {"object": "list", "data": data, "model": self.name, "usage": usage}

    def _vectors(self, texts: list[list[int]]) -> Any:
        counts = numpy.zeros((len(texts), DIMENSIONS), numpy.float32)
        for row, features in enumerate(texts):
            numpy.add.at(counts[row], features, 1.0)
        weighted = numpy.sqrt(counts) * self._signs
        norms = numpy.linalg.norm(weighted, axis=1, keepdims=True)
        return (weighted / numpy.where(norms == 0.0, 1.0, norms)).astype(numpy.float32)


def _features(text: str) -> Iterator[int]:
    for word in _WORD.findall(text.lower()):
        yield crc32(word.encode()) % DIMENSIONS
        for start in range(len(word) - 2):
            yield crc32(word[start : start + 3].encode()) % DIMENSIONS


def _written(vector: Any, as_base64: bool) -> Any:
    return base64.b64encode(vector.tobytes()).decode() if as_base64 else vector.tolist()
