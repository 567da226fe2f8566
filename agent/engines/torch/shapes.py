"""Response bodies and stream chunks in OpenAI's shapes. Pure."""

import base64
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from agent.engines.torch.startup import EngineFacts

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
class TextShape:
    """The bodies of one chat or completion answer. ``created`` in seconds since 1970.

    With ``include_usage`` every chunk has a ``usage`` member, null but in the last, as OpenAI's have.
    """

    chat: bool
    id: str
    model: str
    created: int
    include_usage: bool = False

    def first(self) -> bytes:
        """What goes before the first text: in chat the chunk with the role."""
        return self._chunk({"role": "assistant", "content": ""}) if self.chat else b""

    def text(self, text: str) -> bytes:
        return self._chunk({"content": text} if self.chat else text)

    def last(self, finish_reason: str, usage: TokenUsage) -> bytes:
        """The chunk with the finish reason, the usage if it was asked for, and the end of the stream."""
        end = self._chunk({} if self.chat else "", finish_reason)
        if self.include_usage:
            end += event(self._envelope(stream=True) | {"choices": [], "usage": usage.body()})
        return end + DONE

    def whole(self, text: str, finish_reason: str, usage: TokenUsage) -> dict[str, Any]:
        """The body of an answer that is not streamed."""
        answer: dict[str, Any] = {"text": text}
        if self.chat:
            answer = {"message": {"role": "assistant", "content": text, "refusal": None}}
        choice = {"index": 0, **answer, "logprobs": None, "finish_reason": finish_reason}
        return self._envelope(stream=False) | {"choices": [choice], "usage": usage.body()}

    def _chunk(self, content: Any, finish_reason: str | None = None) -> bytes:
        choice = {
            "index": 0,
            "delta" if self.chat else "text": content,
            "logprobs": None,
            "finish_reason": finish_reason,
        }
        body = self._envelope(stream=True) | {"choices": [choice]}
        return event(body | {"usage": None} if self.include_usage else body)

    def _envelope(self, *, stream: bool) -> dict[str, Any]:
        kind = ("chat.completion.chunk" if stream else "chat.completion") if self.chat else "text_completion"
        return {"id": self.id, "object": kind, "created": self.created, "model": self.model}


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
        "usage": {"prompt_tokens": prompt_tokens, "total_tokens": prompt_tokens},
    }


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
            }
        ],
    }
