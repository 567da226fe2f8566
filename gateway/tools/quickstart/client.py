"""The few requests a quickstart makes, as any client makes them, and what ``--check`` takes for right."""

import contextlib
import math
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import orjson

from gateway.tools.gateway_client import GatewayClient, GatewayFailed
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
            return tuple(entry["id"] for entry in self.get("/v1/models")["data"])
        except WrongAnswer:
            return ()

    def loading(self) -> str:
        """What the engines do that do not serve yet, in words; empty where nobody has said."""
        try:
            agents = self.get("/admin/agents")["agents"]
        except WrongAnswer:
            return ""
        engines = [engine for agent in agents for engine in agent.get("engines", ())]
        said = ((engine["reason"], engine["loading"]) for engine in engines if engine["status"] != "loaded")
        return "; ".join(", ".join(filter(None, words)) for words in said)

    def get(self, path: str) -> Any:
        """The JSON at ``path``. Raises WrongAnswer, as :meth:`post` does."""
        return self._json("GET", path)

    def post(self, path: str, body: dict[str, Any]) -> Any:
        return self._json("POST", path, body)

    def stream_chat(self, body: dict[str, Any], facts: Streamed) -> Iterator[str]:
        """The pieces of text of a streamed chat as they come; ``facts`` is filled on the way. Raises
        WrongAnswer."""
        for event in self._events("/v1/chat/completions", body | {"stream": True}):
            if event.is_done:
                facts.done = True
            elif text := _text_of(event):
                facts.first_s = facts.first_s or time.monotonic()
                yield text

    def _events(self, path: str, body: dict[str, Any]) -> Iterator[ServerSentEvent]:
        reader = ServerSentEventReader()
        with _right(), self._gateway.open("POST", path, body=body, timeout_s=_TIMEOUT_S) as response:
            for line in response:
                yield from reader.feed(line)

    def _json(self, method: str, path: str, body: dict[str, Any] | None = None) -> Any:
        with _right(), self._gateway.open(method, path, body=body, timeout_s=_TIMEOUT_S) as response:
            return orjson.loads(response.read())


@contextlib.contextmanager
def _right() -> Iterator[None]:
    """Raises WrongAnswer for a request that failed."""
    try:
        yield
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
