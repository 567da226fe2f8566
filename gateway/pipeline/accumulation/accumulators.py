"""Puts streamed answers together into what the same engine says in one piece. Pure.

What an accumulator does not know it refuses, so that nothing of an answer is lost unnoticed.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from gateway.dispatch.recovery.responses import ANNOUNCEMENTS
from shared.process.server_sent_events import ServerSentEvent

Json = dict[str, Any]


class NotAccumulable(Exception):
    """The events are not those of an answer that can be put together exactly. Its text is the reason."""


class Accumulator(ABC):
    """Of one answer."""

    def feed(self, event: ServerSentEvent) -> None:
        """Take the next event. Raises NotAccumulable."""
        if event.data is None or event.is_done:
            return
        value = event.value()
        if value is None or value.get("error"):
            raise NotAccumulable("the engine sent something else than the events of an answer")
        self._take(value)

    @abstractmethod
    def _take(self, value: Json) -> None:
        """Of one event with a JSON object in it."""

    @abstractmethod
    def answer(self) -> Json:
        """All events are there. Raises NotAccumulable where the answer lacks something."""


_TEXTS = ("content", "refusal", "reasoning_content", "reasoning", "reasoning_text", "thinking")
"""Members of a delta whose pieces make one text."""
_PADDING = ("obfuscation",)
"""Members that hide how long an event is."""


class ChunkAccumulator(Accumulator):
    """Chat, or else a completion, of one choice: chunks with deltas, the last of them with usage."""

    def __init__(self, *, chat: bool = True) -> None:
        self._chat = chat
        self._head: Json = {}
        self._choice: Json = {}
        self._role: Any = None
        self._texts: dict[str, list[str]] = {}
        self._usage: Json | None = None

    def _take(self, value: Json) -> None:
        choices = value.pop("choices", None)
        if not isinstance(choices, list) or len(choices) > 1:
            raise NotAccumulable("a chunk has not one choice")
        usage = value.pop("usage", None)
        if isinstance(usage, dict):
            self._usage = usage  # that of the last chunk is that of the whole answer
        for name, item in value.items():
            if name not in _PADDING and self._head.get(name) is None:
                self._head[name] = item
        for choice in choices:
            self._take_choice(choice)

    def _take_choice(self, choice: Any) -> None:
        if not isinstance(choice, dict) or choice.pop("index", 0) != 0:
            raise NotAccumulable("a chunk has another choice than the first")
        if self._chat:
            self._take_delta(choice.pop("delta", None) or {})
        else:
            self._add("text", choice.pop("text", None))
        for name, item in choice.items():
            if name in ("logprobs", "token_ids", "prompt_token_ids", "prompt_logprobs") and item is not None:
                raise NotAccumulable(f"a chunk has {name!r}")
            if item is not None or name not in self._choice:
                self._choice[name] = item

    def _take_delta(self, delta: Any) -> None:
        if not isinstance(delta, dict):
            raise NotAccumulable("a chunk has no delta")
        for name, item in delta.items():
            if name == "role":
                self._role = self._role or item
            elif name in _TEXTS:
                self._add(name, item)
            elif item not in (None, [], {}):
                raise NotAccumulable(f"a delta has {name!r}")

    def _add(self, name: str, piece: Any) -> None:
        if piece is None:
            return
        if not isinstance(piece, str):
            raise NotAccumulable(f"{name!r} is no text")
        self._texts.setdefault(name, []).append(piece)

    def answer(self) -> Json:
        finish_reason = self._choice.pop("finish_reason", None)
        if finish_reason is None or self._usage is None:
            raise NotAccumulable("the stream does not say why it ends, or what it used")
        more = {"logprobs": None, **self._choice, "finish_reason": finish_reason}
        texts = {name: "".join(pieces) for name, pieces in self._texts.items()}
        if self._chat:
            message = {"role": self._role or "assistant", "content": None, "refusal": None, **texts}
            choice = {"index": 0, "message": message, **more}
        else:
            choice = {"index": 0, "text": "", **texts, **more}
        kind = "chat.completion" if self._chat else "text_completion"
        return {**self._head, "object": kind, "choices": [choice], "usage": self._usage}


_BLOCK_TEXTS = {"text_delta": "text", "thinking_delta": "thinking", "signature_delta": "signature"}
_BLOCKS = ("text", "thinking")


class MessageAccumulator(Accumulator):
    """Anthropic's messages: a message with no content yet, its blocks, how it ends."""

    def __init__(self) -> None:
        self._message: Json | None = None
        self._blocks: list[tuple[Json, dict[str, list[str]]]] = []
        self._ended = False

    def _take(self, value: Json) -> None:
        kind = value.get("type")
        if kind == "message_start" and self._message is None and isinstance(value.get("message"), dict):
            self._message = value["message"]
        elif kind == "content_block_start":
            self._begin(value)
        elif kind == "content_block_delta":
            self._extend(value)
        elif kind == "message_delta" and self._message is not None:
            self._end(self._message, value)
        elif kind not in ("content_block_stop", "message_stop", "ping"):
            raise NotAccumulable(f"an event is of type {kind[:64] if isinstance(kind, str) else None!r}")

    def _begin(self, value: Json) -> None:
        block = value.get("content_block")
        if not isinstance(block, dict) or block.get("type") not in _BLOCKS:
            raise NotAccumulable("a block is no text")
        if any(not isinstance(block.get(name) or "", str) for name in _BLOCK_TEXTS.values()):
            raise NotAccumulable("a block does not begin with a text")
        if value.get("index") != len(self._blocks):
            raise NotAccumulable("the blocks are not in order")
        self._blocks.append((block, {}))

    def _extend(self, value: Json) -> None:
        index, delta = value.get("index"), value.get("delta")
        if not isinstance(index, int) or not 0 <= index < len(self._blocks) or not isinstance(delta, dict):
            raise NotAccumulable("there is no block of this index")
        kind = delta.get("type")
        name = _BLOCK_TEXTS.get(kind) if isinstance(kind, str) else None
        piece = None if name is None else delta.get(name)
        if name is None or not isinstance(piece, str):
            raise NotAccumulable("a delta is no text")
        self._blocks[index][1].setdefault(name, []).append(piece)

    def _end(self, message: Json, value: Json) -> None:
        delta, usage = value.get("delta"), value.get("usage")
        if isinstance(delta, dict):
            message.update(delta)
            self._ended = self._ended or delta.get("stop_reason") is not None
        if isinstance(usage, dict):
            before = message.get("usage")
            known = {name: item for name, item in usage.items() if item is not None}
            message["usage"] = {**(before if isinstance(before, dict) else {}), **known}

    def answer(self) -> Json:
        if self._message is None or not self._ended:
            raise NotAccumulable("the stream does not say why it ends")
        content = []
        for block, texts in self._blocks:
            joined = {name: "".join([block.get(name) or "", *pieces]) for name, pieces in texts.items()}
            content.append({**block, **joined})
        return {**self._message, "content": content}


class ResponseAccumulator(Accumulator):
    """The Responses API: the last event has all of the response."""

    def __init__(self) -> None:
        self._response: Json | None = None

    def _take(self, value: Json) -> None:
        kind = value.get("type")
        if kind in ("response.failed", "error"):
            raise NotAccumulable("the response failed")
        if kind in ("response.completed", "response.incomplete") and isinstance(value.get("response"), dict):
            self._response = value["response"]
        elif kind in ANNOUNCEMENTS and self._response is not None:
            raise NotAccumulable("the response goes on behind its end")

    def answer(self) -> Json:
        if self._response is None:
            raise NotAccumulable("the stream ended without the whole response")
        return self._response


ACCUMULATORS: Mapping[str, Callable[[], Accumulator]] = {
    "chat": ChunkAccumulator,
    "completions": partial(ChunkAccumulator, chat=False),
    "messages": MessageAccumulator,
    "responses": ResponseAccumulator,
}
"""By route."""
