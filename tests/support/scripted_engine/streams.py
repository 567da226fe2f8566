"""Streamed answers: one class per dialect, each from a request to server-sent events."""

from collections.abc import Mapping
from typing import Any

import orjson

from tests.support.scripted_engine.answers import answer_length, response_of, usage_of
from tests.support.scripted_engine.script import Script, prompt_of, tag_of, token_of


def event(value: Mapping[str, Any]) -> bytes:
    return b"data: " + orjson.dumps(value) + b"\n\n"


def named_event(value: Mapping[str, Any]) -> bytes:
    """An event that also says its type in the ``event:`` field, as the newer dialects do."""
    return b"event: " + str(value["type"]).encode() + b"\n" + event(value)


class Streamed:
    """One streamed answer: ``opening``, then ``chunk`` for each of ``count`` tokens, then ``closing``."""

    def __init__(self, body: Mapping[str, Any], script: Script, request_id: str) -> None:
        self.body = body
        self.script = script
        self.id = request_id
        self.model = str(body.get("model", ""))
        self.count = answer_length(body, script)
        self._tag = tag_of(prompt_of(body))

    def opening(self) -> bytes:
        return b""

    def chunk(self, index: int, now_s: float) -> bytes:
        raise NotImplementedError

    def closing(self) -> bytes:
        raise NotImplementedError

    def token(self, index: int) -> str:
        return token_of(self._tag, index, self.script.pad_bytes)

    def stamp(self, now_s: float) -> dict[str, float]:
        return {"sent_s": now_s} if self.script.stamp else {}


class Completions(Streamed):
    """``/v1/completions``; chat differs in the names only."""

    kind = "text_completion"
    key = "text"

    def piece(self, text: str) -> object:
        return text

    def chunk(self, index: int, now_s: float) -> bytes:
        return event(self._choice(self.piece(self.token(index)), None) | self.stamp(now_s))

    def closing(self) -> bytes:
        last = event(self._choice(self.piece(""), "length"))
        if (self.body.get("stream_options") or {}).get("include_usage"):
            last += event(self._base() | {"choices": [], "usage": usage_of(self.body, self.count)})
        return last + b"data: [DONE]\n\n"

    def _base(self) -> dict[str, Any]:
        return {"id": self.id, "object": self.kind, "created": 1, "model": self.model}

    def _choice(self, piece: object, finish: str | None) -> dict[str, Any]:
        choice = {"index": 0, self.key: piece, "finish_reason": finish, "logprobs": None}
        return self._base() | {"choices": [choice]}


class Chat(Completions):
    kind = "chat.completion.chunk"
    key = "delta"

    def piece(self, text: str) -> object:
        return {"content": text} if text else {}

    def opening(self) -> bytes:
        return event(self._choice({"role": "assistant", "content": ""}, None))


class Responses(Streamed):
    def opening(self) -> bytes:
        return named_event({"type": "response.created", "response": self._response([]), "sequence_number": 0})

    def chunk(self, index: int, now_s: float) -> bytes:
        delta = {"type": "response.output_text.delta", "delta": self.token(index), "item_id": "i"}
        place = {"output_index": 0, "content_index": 0, "sequence_number": index + 1, "logprobs": []}
        return named_event(delta | place | self.stamp(now_s))

    def closing(self) -> bytes:
        last = {"type": "response.completed", "sequence_number": self.count + 1}
        tokens = [self.token(index) for index in range(self.count)]
        return named_event(last | {"response": self._response(tokens)})

    def _response(self, tokens: list[str]) -> dict[str, Any]:
        return response_of(self.model, tokens, self.id)


class Messages(Streamed):
    def opening(self) -> bytes:
        message = {"id": self.id, "type": "message", "role": "assistant", "content": [], "model": self.model}
        usage = {"input_tokens": 1, "output_tokens": 0}
        return named_event({"type": "message_start", "message": message | {"usage": usage}})

    def chunk(self, index: int, now_s: float) -> bytes:
        delta = {"type": "text_delta", "text": self.token(index)}
        return named_event({"type": "content_block_delta", "index": 0, "delta": delta} | self.stamp(now_s))

    def closing(self) -> bytes:
        return named_event({"type": "message_stop"})


STREAMED: Mapping[str, type[Streamed]] = {
    "chat": Chat,
    "completions": Completions,
    "responses": Responses,
    "messages": Messages,
}
