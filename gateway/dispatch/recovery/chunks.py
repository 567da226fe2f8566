"""Answers of chat and completions: chunks with choices, a chunk with usage, ``[DONE]``.

How far they came, and how the chunks of a continuation become those of the answer that began elsewhere.
"""

from dataclasses import dataclass, field, replace
from typing import Any

from gateway.dispatch.recovery.continued_request import (
    FINAL_MESSAGE,
    AnswerProgress,
    AnswerRead,
    PlacedContent,
    in_messages,
    in_prompt,
)
from gateway.dispatch.recovery.editing import NotContinuable
from gateway.dispatch.recovery.events import DONE, SpliceFailed, written
from gateway.dispatch.recovery.original_request import WHOLE_LIMIT, OriginalRequest
from gateway.dispatch.recovery.splicing import ContinuationJoiner, ContinuedUsage, Splicer, count
from shared.process.server_sent_events import ServerSentEvent

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
class ChunksRead(AnswerRead):
    """What the client has of a chat, or else of a completion."""

    chat: bool = True
    role: bool = False
    finished: set[int] = field(default_factory=set)
    reason: Any = None
    """Why the text ended, if it did."""
    usage: bool = False
    _running_usage: bool = False

    def read(self, event: ServerSentEvent) -> None:
        if event.data is None or self.done:
            return
        if event.is_done:
            self.done = True
            return
        chunk = event.value()
        choices = None if chunk is None else chunk.get("choices")
        if chunk is None or not isinstance(choices, list) or chunk.get("error"):
            self.rule_out("the engine sent something else than chunks of an answer")
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
            self.rule_out("the engine sent something else than chunks of an answer")
            return
        if index != 0:
            self.rule_out("there are several answers at once")
        if any(choice.get(name) is not None for name in NUMBERS):
            self.rule_out("the answer comes with logprobs or tokens")
        delta = choice if "text" in choice else choice.get("delta") or {}
        if not isinstance(delta, dict):
            self.rule_out("the engine sent something else than chunks of an answer")
            return
        text = delta.get("text" if "text" in choice else "content")
        if text is not None and not isinstance(text, str):
            self.rule_out("the answer is not text")
        elif text and index == 0:
            self.transcript.add(text, tokens)
        for name, what in MORE_THAN_TEXT.items():
            if delta.get(name):
                self.rule_out(f"the answer holds {what}")
        self.role = self.role or bool(delta.get("role"))
        if choice.get("finish_reason") is not None:
            self.finished.add(index)
            self.reason = choice["finish_reason"] if index == 0 else self.reason

    def copy(self) -> "ChunksRead":
        return replace(self, transcript=self.transcript.copy(), finished=set(self.finished))

    def progress(self, original: OriginalRequest, usage_wanted: bool | None) -> "ChunkProgress":
        return ChunkProgress(original, self, original.wants_usage if usage_wanted is None else usage_wanted)

    @property
    def identity(self) -> dict[str, Any]:
        first = self.first or {}
        return {name: first[name] for name in IDENTITY if name in first}

    def ending(self) -> bytes:
        """A chunk that says that the answer was as long as it may be."""
        content: dict[str, Any] = {"delta": {}} if self.chat else {"text": ""}
        choice = {"index": 0, **content}
        chunk = self.identity | {"choices": [choice | {"logprobs": None, "finish_reason": "length"}]}
        return written(chunk | {"usage": None} if "usage" in (self.first or {}) else chunk)


_PASSING = ("tool_calls", "function_call")
"""What may follow a text: it is whole in the continuation."""


class ChunkSplicer(Splicer):
    """Joins a continuation to what the client ``received``. ``joiner`` is None where the text is whole and
    only usage is wanted. ``ending`` goes before everything else."""

    def __init__(
        self,
        received: ChunksRead,
        joiner: ContinuationJoiner | None,
        tally: ContinuedUsage,
        ending: bytes = b"",
    ) -> None:
        super().__init__(tally)
        self._received = received
        self._chat = received.chat
        self._identity = received.identity
        self._role = received.role
        self._begun = bool(received.transcript.text)
        self._joiner = joiner
        self._ending = ending
        self._finished = False
        self._silent = True
        """The continuation had no text yet."""

    def _rest(self) -> bytes:
        rest = self._joiner.finish() if self._joiner is not None and not self._finished else ""
        return self._chunk({"choices": [self._choice_of(rest)]}) if rest else b""

    def _event(self, event: ServerSentEvent) -> bytes:
        ending, self._ending = self._ending, b""
        if event.is_done:
            return ending + DONE
        chunk = event.value()
        if chunk is None or not isinstance(chunk.get("choices"), list) or chunk.get("error"):
            raise SpliceFailed("the engine that went on with the answer sent something else than its chunks")
        if self._joiner is None:
            self._look_for_end(chunk["choices"])
        usage = chunk.get("usage")
        if isinstance(usage, dict):
            chunk["usage"] = self._tally.chat(usage)
        return ending + (self._usage_of(chunk) if self._joiner is None else self._joined(chunk))

    def _look_for_end(self, choices: list[Any]) -> None:
        """An answer that ends of itself does so by a token without text, which engines count too. When the
        continuation is that token and no more, its count is the one that is missing."""
        for choice in choices:
            self._silent = self._silent and not _text_of(choice)
            if self._silent and self._received.reason == "stop" == _finish_reason(choice):
                self._tally.count_end()

    def _usage_of(self, chunk: dict[str, Any]) -> bytes:
        """The usage in a chunk of a continuation that was asked for nothing else."""
        ended = not chunk["choices"] or _finish_reason(chunk["choices"][0]) is not None
        if not ended or not isinstance(chunk.get("usage"), dict):
            return b""
        return self._chunk(chunk | {"choices": []})

    def _joined(self, chunk: dict[str, Any]) -> bytes:
        choices = chunk["choices"]
        if not choices:
            return self._chunk(chunk) if chunk.get("usage") else b""
        if len(choices) != 1 or not isinstance(choices[0], dict) or choices[0].get("index", 0) != 0:
            raise SpliceFailed("the engine that went on with the answer sent several answers at once")
        choice = self._choice(dict(choices[0]))
        return b"" if choice is None else self._chunk(chunk | {"choices": [choice]})

    def _choice(self, choice: dict[str, Any]) -> dict[str, Any] | None:
        """The choice as it goes to the client; None when there is nothing left to say."""
        given = choice.get("delta") or {}
        delta = choice if not self._chat else dict(given if isinstance(given, dict) else {})
        key = "content" if self._chat else "text"
        text = delta.get(key)
        self._check(delta, text)
        if self._chat:
            choice["delta"] = delta
        if self._role:
            delta.pop("role", None)
        said_role = self._role or "role" not in delta
        self._role = self._role or bool(delta.get("role"))
        assert self._joiner is not None
        joined = self._joiner.feed(text or "")
        ended = _finish_reason(choice) is not None
        calls = any(delta.get(name) for name in _PASSING)
        if (ended or calls) and not self._finished:
            joined += self._joiner.finish()
        self._finished = self._finished or ended
        if text or joined:
            delta[key] = joined
        says_more = any(delta.get(name) for name in MORE_THAN_TEXT)
        return choice if joined or ended or says_more or not said_role else None

    def _check(self, delta: dict[str, Any], text: Any) -> None:
        if text is not None and not isinstance(text, str):
            raise SpliceFailed("the engine that went on with the answer sent no text")
        for name, what in MORE_THAN_TEXT.items():
            if self._begun and delta.get(name) and name not in _PASSING:
                raise SpliceFailed(f"the engine that went on with the answer sent {what}")

    def _choice_of(self, text: str) -> dict[str, Any]:
        content = {"delta": {"content": text}} if self._chat else {"text": text}
        return {"index": 0, **content, "logprobs": None, "finish_reason": None}

    def _chunk(self, chunk: dict[str, Any]) -> bytes:
        """The chunk with the identity of the first one."""
        if self._received.first is None:
            return written(chunk)
        for name in ("system_fingerprint", "service_tier"):
            chunk.pop(name, None)
        return written(self._identity | chunk | self._identity)


def _text_of(choice: Any) -> Any:
    """The text in a choice of either kind, None when there is none."""
    delta = choice.get("delta", choice) if isinstance(choice, dict) else None
    return delta.get("content") or delta.get("text") if isinstance(delta, dict) else None


def _finish_reason(choice: Any) -> Any:
    return choice.get("finish_reason") if isinstance(choice, dict) else None


COMPLETION_TOKENS = 16
"""How long a completion is at many engines, and at others not, when the request does not say."""


class ChunkProgress(AnswerProgress):
    """How far a chat or completion came."""

    def __init__(self, original: OriginalRequest, received: ChunksRead, usage_wanted: bool) -> None:
        super().__init__(original, received)
        self._received = received
        self._ending = b""
        expected = set(range(original.choices))
        self.finished = received.done or expected <= received.finished
        self.closing = None
        if received.done:
            self.closing = b""
        elif self.finished and (received.usage or not usage_wanted):
            self.closing = DONE
        else:
            self._check(received)
            self._check_length()
            self._exhaust(usage_wanted)

    def _check_length(self) -> None:
        """Raises :class:`NotContinuable` if it is not known how long the answer may be."""
        unlimited = self._original.most_tokens is None and not self._received.chat
        if unlimited and self.text and not self.finished and self.tokens <= COMPLETION_TOKENS:
            raise NotContinuable("the request does not say how long the answer may be (max_tokens)")

    def _exhaust(self, usage_wanted: bool) -> None:
        if not self.finished and self._exhausted:
            self.finished = True
            self._ending = self._received.ending()
            if not usage_wanted:
                self.closing = self._ending + DONE

    def _place(self, mode: str, text: str) -> PlacedContent:
        if not self._received.chat:
            return in_prompt(self._original, mode, text)
        placed = in_messages(self._original, mode, text)
        most = self._original.most_tokens
        if mode != FINAL_MESSAGE or most is None or self.finished:
            return placed
        return replace(placed, changes={**placed.changes, WHOLE_LIMIT: b"%d" % most})

    def splicer(self) -> ChunkSplicer:
        return ChunkSplicer(self._received, self._joiner(), self._tally(), self._ending)
