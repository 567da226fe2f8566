"""What a chat's or a completion's events say: chunks with choices, a chunk with usage, ``[DONE]``."""

from dataclasses import dataclass, field, replace
from typing import Any

from gateway.dispatch.recovery.events import ServerEvent, written
from gateway.dispatch.recovery.seam import CountedText
from gateway.dispatch.recovery.tally import count

IDENTITY = ("id", "object", "created", "model", "system_fingerprint", "service_tier")
"""What all chunks of an answer have alike."""

MORE_THAN_TEXT = {
    "refusal": "a refusal",
    "reasoning_content": "reasoning",
    "reasoning": "reasoning",
    "reasoning_text": "reasoning",
    "reasoning_details": "reasoning",
    "thinking": "reasoning",
    "thinking_blocks": "reasoning",
    "tool_calls": "tool calls",
    "function_call": "a function call",
    "audio": "audio",
    "images": "images",
    "annotations": "annotations",
}
"""Members of a delta (of a choice, for completions) that a text cannot be continued after."""
NUMBERS = ("logprobs", "token_ids", "prompt_logprobs", "prompt_token_ids")
"""Members of a choice that a continuation has no values for."""


@dataclass(slots=True)
class ChunksRead:
    """What the client has. ``trouble``: why nobody can go on, should anything of the answer be missing."""

    transcript: CountedText = field(default_factory=CountedText)
    first: dict[str, Any] | None = None
    role: bool = False
    finished: set[int] = field(default_factory=set)
    reason: Any = None
    """Why the text ended, if it did."""
    usage: bool = False
    done: bool = False
    trouble: str | None = None
    _running_usage: bool = False

    def read(self, event: ServerEvent) -> None:
        if event.data is None or self.done:
            return
        if event.is_done:
            self.done = True
            return
        chunk = event.value()
        choices = None if chunk is None else chunk.get("choices")
        if chunk is None or not isinstance(choices, list) or chunk.get("error"):
            self._stop("the engine sent something else than chunks of an answer")
            return
        if self.first is None:
            self.first = chunk
        usage = chunk.get("usage")
        tokens = count(usage.get("completion_tokens")) if isinstance(usage, dict) else None
        for choice in choices:
            self._read_choice(choice, tokens)
        if tokens is not None:
            self._read_usage(choices)

    def _read_usage(self, choices: list[Any]) -> None:
        """Some engines send the usage so far with every chunk, some the whole with the last choice."""
        ended = any(isinstance(choice, dict) and choice.get("finish_reason") for choice in choices)
        if not choices or (ended and not self._running_usage):
            self.usage = True
        self._running_usage = self._running_usage or bool(choices)

    def _read_choice(self, choice: Any, tokens: int | None) -> None:
        index = choice.get("index", 0) if isinstance(choice, dict) else None
        if not isinstance(index, int):
            self._stop("the engine sent something else than chunks of an answer")
            return
        if index != 0:
            self._stop("there are several answers at once")
        if any(choice.get(name) is not None for name in NUMBERS):
            self._stop("the answer comes with logprobs or tokens")
        delta = choice if "text" in choice else choice.get("delta") or {}
        if not isinstance(delta, dict):
            self._stop("the engine sent something else than chunks of an answer")
            return
        text = delta.get("text" if "text" in choice else "content")
        if text is not None and not isinstance(text, str):
            self._stop("the answer is not text")
        elif text and index == 0:
            self.transcript.add(text, tokens)
        for name, what in MORE_THAN_TEXT.items():
            if delta.get(name):
                self._stop(f"the answer holds {what}")
        self.role = self.role or bool(delta.get("role"))
        if choice.get("finish_reason") is not None:
            self.finished.add(index)
            self.reason = choice["finish_reason"] if index == 0 else self.reason

    def copy(self) -> "ChunksRead":
        return replace(self, transcript=self.transcript.copy(), finished=set(self.finished))

    def _stop(self, why: str) -> None:
        self.trouble = self.trouble or why

    @property
    def identity(self) -> dict[str, Any]:
        first = self.first or {}
        return {name: first[name] for name in IDENTITY if name in first}

    def ending(self, *, chat: bool) -> bytes:
        """A chunk that says that the answer was as long as it may be."""
        content: dict[str, Any] = {"delta": {}} if chat else {"text": ""}
        choice = {"index": 0, **content}
        chunk = self.identity | {"choices": [choice | {"logprobs": None, "finish_reason": "length"}]}
        return written(chunk | {"usage": None} if "usage" in (self.first or {}) else chunk)
