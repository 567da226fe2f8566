"""What ``quickstart --check`` asks, and what it takes for right."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gateway.tools.quickstart.client import Client, Streamed
from gateway.tools.quickstart.errors import WrongAnswer

QUESTION = "What is Trunkline?"
_ANSWER_TOKENS = 96


def chat_body(model: str, question: str = QUESTION) -> dict[str, Any]:
    """A greedy chat: the same question has the same answer every time."""
    messages = [{"role": "user", "content": question}]
    return {"model": model, "messages": messages, "max_tokens": _ANSWER_TOKENS, "temperature": 0}


@dataclass(frozen=True, slots=True)
class Verdict:
    """All three answers were right."""

    answer: str
    first_token_s: float
    completion_tokens: int
    dimensions: int


def run_checks(client: Client, model: str) -> Verdict:
    """A streamed chat, a plain chat, an embeddings request. Raises WrongAnswer at the first not right."""
    body = chat_body(model)
    facts = Streamed()
    streamed = "".join(client.stream_chat(body, facts))
    if not facts.done:
        raise WrongAnswer("the streamed chat ended without data: [DONE]")
    if not streamed.strip():
        raise WrongAnswer("the streamed chat was empty")
    plain = client.post("/v1/chat/completions", body)
    _same_answer(streamed, plain)
    vectors = client.post("/v1/embeddings", {"model": model, "input": [QUESTION, "How do agents connect?"]})
    return Verdict(
        answer=streamed,
        first_token_s=facts.first_token_s,
        completion_tokens=int(plain["usage"]["completion_tokens"]),
        dimensions=_embedding_dimensions(vectors),
    )


def _same_answer(streamed: str, plain: Mapping[str, Any]) -> None:
    text = plain["choices"][0]["message"]["content"]
    if text != streamed:
        raise WrongAnswer(f"the plain chat answered {text!r}, the streamed one {streamed!r}")
    if plain["usage"]["completion_tokens"] <= 0:
        raise WrongAnswer("the plain chat counted no tokens")


def _embedding_dimensions(answer: Mapping[str, Any]) -> int:
    vectors = [entry["embedding"] for entry in answer["data"]]
    if len(vectors) != 2 or not vectors[0] or len(vectors[0]) != len(vectors[1]):
        raise WrongAnswer("the embeddings request did not give two vectors of one length")
    if not all(math.isfinite(value) for vector in vectors for value in vector):
        raise WrongAnswer("an embedding is not a finite number")
    if vectors[0] == vectors[1]:
        raise WrongAnswer("two different texts had the same embedding")
    return len(vectors[0])
