"""Response bodies and stream chunks in OpenAI's shapes. Pure."""

import base64
import math
import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from agent.engines.torch.logprobs import TokenLogprob, TokenTexts, chat_logprobs, completion_logprobs
from agent.engines.torch.startup import EngineFacts
from agent.engines.torch.vector_requests import RerankRequest

DONE = b"data: [DONE]\n\n"


@dataclass(frozen=True, slots=True)
class TokenUsage:
    """``continued_tokens``: how many of the prompt's are this answer's beginning; None when it has none."""

    prompt_tokens: int
    completion_tokens: int
    continued_tokens: int | None = None

    def body(self) -> dict[str, Any]:
        counts: dict[str, Any] = {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completion_tokens,
            "total_tokens": self.prompt_tokens + self.completion_tokens,
        }
        if self.continued_tokens is not None:
            counts["prompt_tokens_details"] = {"continued_tokens": self.continued_tokens}
        return counts


def event(value: Any) -> bytes:
    """One server-sent event."""
    return b"data: " + orjson.dumps(value) + b"\n\n"


@dataclass(frozen=True, slots=True)
class CallDelta:
    """What was added to a tool call. ``id`` and ``name`` come once, with the first of it."""

    index: int
    id: str | None = None
    name: str | None = None
    arguments: str = ""

    def body(self) -> dict[str, Any]:
        if self.id is None:
            return {"index": self.index, "function": {"arguments": self.arguments}}
        function = {"name": self.name, "arguments": self.arguments}
        return {"index": self.index, "id": self.id, "type": "function", "function": function}


@dataclass(frozen=True, slots=True)
class ChoiceChunk:
    """What was added to a choice. Its last one has the ``finish_reason`` and nothing else."""

    index: int
    text: str = ""
    logprobs: tuple[TokenLogprob, ...] = ()
    calls: tuple[CallDelta, ...] = ()
    finish_reason: str | None = None


@dataclass(frozen=True, slots=True)
class TextShape:
    """The bodies of one chat or completion answer. ``created`` in seconds since 1970.

    With ``include_usage`` every chunk has a ``usage`` member, null but in the last, as OpenAI's have.
    ``tokens`` is needed for log probabilities only; None: none were asked for.
    """

    chat: bool
    id: str
    model: str
    created: int
    include_usage: bool = False
    tokens: TokenTexts | None = None

    def first(self, choices: int = 1) -> bytes:
        """What goes before the first text: in chat a chunk with the role for each choice."""
        if not self.chat:
            return b""
        return b"".join(self._event(index, {"role": "assistant", "content": ""}) for index in range(choices))

    def chunk(self, chunk: ChoiceChunk) -> bytes:
        content: Any = chunk.text
        if self.chat:
            content = {"content": chunk.text} if chunk.text else {}
            if chunk.calls:
                content["tool_calls"] = [call.body() for call in chunk.calls]
        return self._event(chunk.index, content, chunk.finish_reason, self._logprobs(chunk.logprobs))

    def end(self, usage: TokenUsage) -> bytes:
        """The usage if it was asked for, and the end of the stream."""
        if not self.include_usage:
            return DONE
        return event(self._envelope(stream=True) | {"choices": [], "usage": usage.body()}) + DONE

    def whole(self, chunks: Iterable[ChoiceChunk], usage: TokenUsage) -> dict[str, Any]:
        """The body of an answer that is not streamed, of all its chunks."""
        choices: dict[int, list[ChoiceChunk]] = {}
        for chunk in chunks:
            choices.setdefault(chunk.index, []).append(chunk)
        bodies = [self._choice(index, choices[index]) for index in sorted(choices)]
        return self._envelope(stream=False) | {"choices": bodies, "usage": usage.body()}

    def _choice(self, index: int, chunks: Sequence[ChoiceChunk]) -> dict[str, Any]:
        text = "".join(chunk.text for chunk in chunks)
        answer: dict[str, Any] = {"text": text}
        if self.chat:
            message: dict[str, Any] = {"role": "assistant", "content": text, "refusal": None}
            if calls := _joined_calls([call for chunk in chunks for call in chunk.calls]):
                message |= {"content": text or None, "tool_calls": calls}
            answer = {"message": message}
        logprobs = self._logprobs([entry for chunk in chunks for entry in chunk.logprobs], always=True)
        return {"index": index, **answer, "logprobs": logprobs, "finish_reason": chunks[-1].finish_reason}

    def _logprobs(self, entries: Sequence[TokenLogprob], *, always: bool = False) -> dict[str, Any] | None:
        if self.tokens is None or not (entries or always):
            return None
        return (chat_logprobs if self.chat else completion_logprobs)(entries, self.tokens)

    def _event(
        self, index: int, content: Any, finish_reason: str | None = None, logprobs: Any = None
    ) -> bytes:
        choice = {
            "index": index,
            "delta" if self.chat else "text": content,
            "logprobs": logprobs,
            "finish_reason": finish_reason,
        }
        body = self._envelope(stream=True) | {"choices": [choice]}
        return event(body | {"usage": None} if self.include_usage else body)

    def _envelope(self, *, stream: bool) -> dict[str, Any]:
        kind = ("chat.completion.chunk" if stream else "chat.completion") if self.chat else "text_completion"
        return {"id": self.id, "object": kind, "created": self.created, "model": self.model}


def _joined_calls(deltas: Iterable[CallDelta]) -> list[dict[str, Any]]:
    """The calls that the deltas add up to."""
    calls: dict[int, dict[str, Any]] = {}
    for delta in deltas:
        if delta.id is not None:
            function = {"name": delta.name, "arguments": ""}
            calls[delta.index] = {"id": delta.id, "type": "function", "function": function}
        calls[delta.index]["function"]["arguments"] += delta.arguments
    return list(calls.values())


def embeddings(
    vectors: Sequence[Sequence[float]], *, model: str, prompt_tokens: int, as_base64: bool
) -> dict[str, Any]:
    """The body of an embeddings answer; base64 is of little-endian float32, as OpenAI's."""
    return {
        "object": "list",
        "data": [
            {
                "object": "embedding",
                "index": index,
                "embedding": _base64_floats(vector) if as_base64 else list(vector),
            }
            for index, vector in enumerate(vectors)
        ],
        "model": model,
        "usage": _read_usage(prompt_tokens),
    }


def rerank(
    request: RerankRequest, scores: Sequence[float], *, answer_id: str, model: str, tokens: int
) -> dict[str, Any]:
    """The body of a reranking answer as Jina's and Cohere's are, best first."""
    texts = request.texts
    order = sorted(range(len(texts)), key=lambda index: -scores[index])
    results: list[dict[str, Any]] = [
        {"index": index, "relevance_score": scores[index]} for index in order[: request.top_n]
    ]
    if request.return_documents:
        results = [each | {"document": {"text": texts[each["index"]]}} for each in results]
    return {"id": answer_id, "model": model, "usage": _read_usage(tokens), "results": results}


def score(
    scores: Sequence[float], *, answer_id: str, model: str, created: int, tokens: int
) -> dict[str, Any]:
    """The body of an answer of scores as vLLM's."""
    data = [{"index": index, "object": "score", "score": value} for index, value in enumerate(scores)]
    return _listed(data, answer_id, model, created, tokens)


def classify(
    vectors: Sequence[Sequence[float]],
    labels: Sequence[str],
    *,
    answer_id: str,
    model: str,
    created: int,
    tokens: int,
) -> dict[str, Any]:
    """The body of an answer of classes as vLLM's; ``probs`` in the order of the model's labels."""
    data = [
        {
            "index": index,
            "label": labels[max(range(len(labels)), key=lambda label: probabilities[label])],
            "probs": list(probabilities),
            "num_classes": len(labels),
        }
        for index, probabilities in enumerate(vectors)
    ]
    return _listed(data, answer_id, model, created, tokens)


def _listed(data: Any, answer_id: str, model: str, created: int, tokens: int) -> dict[str, Any]:
    usage = _read_usage(tokens)
    return {
        "id": answer_id,
        "object": "list",
        "created": created,
        "model": model,
        "data": data,
        "usage": usage,
    }


def _read_usage(tokens: int) -> dict[str, int]:
    return {"prompt_tokens": tokens, "total_tokens": tokens}


def transcript(text: str, duration_s: float) -> dict[str, Any]:
    """The body of a transcription."""
    return {"text": text, "usage": {"type": "duration", "seconds": math.ceil(duration_s)}}


def _base64_floats(vector: Sequence[float]) -> str:
    return base64.b64encode(struct.pack(f"<{len(vector)}f", *vector)).decode("ascii")


def model_list(facts: EngineFacts) -> dict[str, Any]:
    """The body of ``/v1/models``; ``max_model_len`` as vLLM says it, the rest of our own."""
    return {
        "object": "list",
        "data": [
            {
                "id": facts.model,
                "object": "model",
                "created": facts.created,
                "owned_by": "trunkline",
                "max_model_len": facts.context_tokens,
                "slots": facts.slots,
                "routes": facts.routes,
                "capabilities": facts.capabilities,
            }
        ],
    }
