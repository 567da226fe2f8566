"""The few requests a quickstart makes, as any client makes them, and what ``--check`` takes for right."""

import contextlib
import math
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from http.client import HTTPResponse
from itertools import chain
from typing import Any

import orjson

from gateway.cli_support.gateway_client import GatewayClient, GatewayFailed
from gateway.tools.quickstart.processes import QuickstartFailed
from shared.process.server_sent_events import ServerSentEvent, ServerSentEventReader

QUESTION = "What is Trunkline?"
_ANSWER_TOKENS = 96
_TIMEOUT_S = 120.0
"""A first answer on a slow, busy machine; a model's first step is its slowest."""


class WrongAnswer(QuickstartFailed):
    """An answer came, and it is not what it should be."""


@dataclass(slots=True)
class Streamed:
    """What is known of a streamed answer so far; complete once its pieces were all taken."""

    began_s: float = field(default_factory=time.monotonic)
    first_s: float | None = None
    done: bool = False

    @property
    def first_token_s(self) -> float:
        """Seconds from the request to the first piece of text."""
        assert self.first_s is not None, "no text came yet"
        return self.first_s - self.began_s


class Client:
    """Speaks to one gateway on this machine with one key."""

    def __init__(self, port: int, key: str) -> None:
        self._gateway = GatewayClient(f"http://127.0.0.1:{port}", key)

    def ready(self) -> bool:
        """True once the gateway would take requests."""
        try:
            with self._gateway.open("GET", "/readyz"):
                return True
        except GatewayFailed:
            return False

    def models(self) -> tuple[str, ...]:
        """The models on offer now."""
        try:
            return tuple(entry["id"] for entry in self.ask("/v1/models")["data"])
        except WrongAnswer:
            return ()

    def loading(self) -> str:
        """What the engines that do not serve yet are doing, in words; empty where none reports it."""
        try:
            agents = self.ask("/admin/agents")["agents"]
        except WrongAnswer:
            return ""
        engines = [engine for agent in agents for engine in agent.get("engines", ())]
        said = ((engine["reason"], engine["loading"]) for engine in engines if engine["status"] != "loaded")
        return "; ".join(", ".join(filter(None, words)) for words in said)

    def ask(self, path: str, body: dict[str, Any] | None = None) -> Any:
        """The JSON at ``path``, or what is answered to ``body``. Raises WrongAnswer."""
        with self._open(path, body) as response:
            return orjson.loads(response.read())

    def stream_chat(self, body: dict[str, Any], facts: Streamed) -> Iterator[str]:
        """The pieces of text of a streamed chat as they come; ``facts`` is filled on the way. Raises
        WrongAnswer."""
        reader = ServerSentEventReader()
        with self._open("/v1/chat/completions", body | {"stream": True}) as response:
            for event in chain.from_iterable(map(reader.feed, response)):
                if event.is_done:
                    facts.done = True
                elif text := _text_of(event):
                    facts.first_s = facts.first_s or time.monotonic()
                    yield text

    @contextlib.contextmanager
    def _open(self, path: str, body: dict[str, Any] | None) -> Iterator[HTTPResponse]:
        method = "GET" if body is None else "POST"
        try:
            with self._gateway.open(method, path, body=body, timeout_s=_TIMEOUT_S) as response:
                yield response
        except GatewayFailed as error:
            said = str(error) if error.status is None else f"the gateway answered {error.status}: {error}"
            raise WrongAnswer(said) from error


def _text_of(event: ServerSentEvent) -> str:
    value = event.value() or {}
    if "error" in value:
        raise WrongAnswer(f"the stream broke: {value['error'].get('message')}")
    return "".join(choice["delta"].get("content") or "" for choice in value.get("choices", ()))


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
    plain = client.ask("/v1/chat/completions", body)
    _same_answer(streamed, plain)
    vectors = client.ask("/v1/embeddings", {"model": model, "input": [QUESTION, "How do agents connect?"]})
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
