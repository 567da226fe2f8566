"""The request for the next engine: where the text so far goes in it, for every route and mode."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Self

import orjson

from gateway.dispatch.recovery.editing import NotContinuable, outline_at_once
from gateway.dispatch.recovery.original_request import OriginalRequest
from gateway.dispatch.recovery.splicing import (
    ECHO_EVENTS,
    ContinuationJoiner,
    ContinuedUsage,
    CountedText,
    Splicer,
)
from shared.process.server_sent_events import ServerSentEvent

FINAL_MESSAGE = "final_message"
PREFILL = "prefill"
PROMPT = "prompt"

MOST_BEGUN_BYTES = 256 * 1024
"""The longest message or item that the client began and the answer continues."""

_THOUGHTS = ("<think>", "</think>")
"""Chat templates cut what lies between out of an assistant's earlier words."""


@dataclass(frozen=True, slots=True)
class PlacedContent:
    """``changes`` to the request's members. ``before``: what the client itself let the answer begin with."""

    changes: Mapping[str, bytes]
    before: str = field(default="", repr=False)


def in_prompt(original: OriginalRequest, mode: str, text: str) -> PlacedContent:
    """Completions: the text follows the prompt."""
    if mode != PROMPT:
        raise NotContinuable(f"completions cannot go on by the way {mode!r}")
    prompt = original.members.get("prompt")
    if isinstance(prompt, str):
        return PlacedContent({"prompt": orjson.dumps(prompt + text)})
    if isinstance(prompt, list) and len(prompt) == 1 and isinstance(prompt[0], str):
        return PlacedContent({"prompt": orjson.dumps([prompt[0] + text])})
    raise NotContinuable("the prompt is not one text")


def in_messages(original: OriginalRequest, mode: str, text: str) -> PlacedContent:
    """Chat and Anthropic's messages: the last message is the assistant's and unfinished.

    One that the client began itself is written on. For an engine that must be told to continue
    (``final_message``) that is one of which the client told it so; otherwise its answer was a new message.
    """
    changes = _continue_members(original, mode, text)
    messages = original.members.get("messages")
    if not isinstance(messages, list) or not messages or not isinstance(messages[-1], dict):
        raise NotContinuable("the request has no list of messages")
    if not _is_begun(original, messages[-1], mode):
        new = {"role": "assistant", "content": text}
        return PlacedContent(
            changes | {"messages": original.outline.with_another("messages", orjson.dumps(new))}
        )
    if messages[-1].get("tool_calls") or messages[-1].get("reasoning_content"):
        raise NotContinuable("the answer was begun by the client with more than text")
    message, before = _extended(original.outline.last("messages"), messages[-1].get("content"), text, "text")
    return PlacedContent(changes | {"messages": original.outline.with_last("messages", message)}, before)


def in_input(original: OriginalRequest, mode: str, text: str, item_id: str) -> PlacedContent:
    """Responses: the last item of the input is the assistant's and incomplete, with the id it has already."""
    changes = _continue_members(original, mode, text)
    given = original.members.get("input")
    part = {"type": "output_text", "text": text, "annotations": []}
    item: dict[str, Any] = {"type": "message", "id": item_id, "role": "assistant", "status": "incomplete"}
    item["content"] = [part]
    if isinstance(given, str):
        items: list[dict[str, Any]] = [{"type": "message", "role": "user", "content": given}, item]
        return PlacedContent(changes | {"input": orjson.dumps(items)})
    if not isinstance(given, list):
        raise NotContinuable("the request has no input that could be written on")
    if not given or not isinstance(given[-1], dict) or not _is_begun(original, given[-1], mode):
        return PlacedContent(changes | {"input": original.outline.with_another("input", orjson.dumps(item))})
    longer, before = _extended(original.outline.last("input"), given[-1].get("content"), text, "output_text")
    return PlacedContent(changes | {"input": original.outline.with_last("input", longer)}, before)


def _continue_members(original: OriginalRequest, mode: str, text: str) -> dict[str, bytes]:
    """The members that tell an engine to continue. Raises for texts that templates change."""
    if mode not in (FINAL_MESSAGE, PREFILL):
        raise NotContinuable(f"a chat cannot go on by the way {mode!r}")
    if original.members.get("continue_final_message") not in (None, False, True):
        raise NotContinuable("the request sets 'continue_final_message' to more than true or false")
    if any(mark in text for mark in _THOUGHTS):
        raise NotContinuable("the answer holds reasoning")
    if mode == PREFILL:
        return {}
    return {"continue_final_message": b"true", "add_generation_prompt": b"false"}


def _is_begun(original: OriginalRequest, message: Mapping[str, Any], mode: str) -> bool:
    """Whether the last message is the beginning of the answer, by the client's own will."""
    if message.get("role") != "assistant":
        return False
    if mode == PREFILL or original.members.get("continue_final_message") is True:
        return True
    return message.get("status") in ("in_progress", "incomplete")


def _extended(raw: bytes, content: Any, text: str, kind: str) -> tuple[bytes, str]:
    """The message with more text, and the text it had."""
    if len(raw) > MOST_BEGUN_BYTES:
        raise NotContinuable("what the request lets the answer begin with is too long")
    message = outline_at_once(raw, "content")
    if isinstance(content, str):
        return message.with_members({"content": orjson.dumps(content + text)}), content
    parts = content if isinstance(content, list) else []
    if not parts or any(not isinstance(part, dict) or part.get("type") != kind for part in parts):
        raise NotContinuable("the answer was begun by the client with more than text")
    texts = [part.get("text") for part in parts]
    if not all(isinstance(item, str) for item in texts):
        raise NotContinuable("the answer was begun by the client with more than text")
    part = outline_at_once(message.last("content"), "text")
    longer = part.with_members({"text": orjson.dumps(texts[-1] + text)})
    return message.with_members({"content": message.with_last("content", longer)}), "".join(texts)


@dataclass(slots=True)
class AnswerRead(ABC):
    """What the client has of an answer, of one route each subclass."""

    transcript: CountedText = field(default_factory=CountedText)
    first: dict[str, Any] | None = None
    """The answer as its first event announced it."""
    done: bool = False
    """The event that ends the route's streams came."""
    trouble: str | None = None
    """Why no engine can continue the answer, if any of it is missing."""

    @abstractmethod
    def read(self, event: ServerSentEvent) -> None:
        """Take in the next event."""

    @abstractmethod
    def progress(self, original: OriginalRequest, usage_wanted: bool | None) -> "AnswerProgress":
        """How far the answer to ``original`` came. ``usage_wanted``: whether the client gets to see the usage
        where that is a choice; None: as the request says. Raises :class:`NotContinuable`."""

    def copy(self) -> Self:
        """The same, to be kept while more events are read into this one."""
        return replace(self, transcript=self.transcript.copy())

    def rule_out(self, why: str) -> None:
        self.trouble = self.trouble or why


class AnswerProgress(ABC):
    """An answer that broke off and can go on: it is one text. A subclass finds out how far it came and sets
    ``finished`` and ``closing``."""

    limit_name = "max_tokens"
    """What the route calls the most tokens of an answer."""
    finished: bool
    """The text is whole; only what follows it is missing."""
    closing: bytes | None
    """Not None: with these bytes the answer is complete, so no engine needs to continue it."""

    def __init__(self, original: OriginalRequest, received: AnswerRead) -> None:
        self.text = received.transcript.text
        """What of the answer's text the client has."""
        self.tokens = received.transcript.tokens
        """How many tokens that is: one for each event with text, or what the engine counted."""
        self._original = original
        self._transcript = received.transcript
        self._mode = ""
        self._sent = ""
        self._before = ""

    @abstractmethod
    def _place(self, mode: str, text: str) -> PlacedContent:
        """Where ``text`` goes in the request. Raises :class:`NotContinuable`."""

    @abstractmethod
    def splicer(self) -> Splicer:
        """For the answer to the request that :meth:`continued_request` made last."""

    def continued_request(self, mode: str) -> bytes:
        """The body of the request for the next engine, which can continue in ``mode``. All is as the client
        wrote it but what continuing changes. Raises :class:`NotContinuable` when this mode does not allow it.

        White space at the end of the text is not sent as a prefill: Anthropic's API refuses it, and some
        engines cut it off unasked. The continuation has to begin with it then.
        """
        assert self.closing is None, "nobody needs to be asked"
        self._mode = mode
        self._sent = self.text.rstrip() if mode == PREFILL else self.text
        placed = self._place(mode, self._sent) if self._sent else PlacedContent({})
        self._before = placed.before
        if mode == PREFILL:
            self._check_unrepeated()
        if self.finished:
            lengths = self._original.shortest(self.limit_name)
        else:
            lengths = self._original.limited(self._sent_tokens)
        if not self.text and not self.finished:
            return self._original.body
        return self._original.changed({**placed.changes, **lengths})

    def _check(self, received: AnswerRead) -> None:
        """Raises :class:`NotContinuable` for an answer or a request that no engine can continue."""
        if received.trouble is not None:
            raise NotContinuable(received.trouble)
        self._original.check(begun=bool(self.text))

    @property
    def _exhausted(self) -> bool:
        """The answer is as long as it may be: it is finished, though its engine could not say so."""
        most = self._original.most_tokens
        return most is not None and self.tokens >= most

    @property
    def _sent_tokens(self) -> int:
        return self._transcript.tokens_within(len(self._sent))

    def _check_unrepeated(self) -> None:
        """Raises when the first engine may have repeated what the client let it begin with, or may not."""
        if self._before and (self.text.startswith(self._before) or self._before.startswith(self.text)):
            raise NotContinuable("the answer may hold twice what the request lets it begin with")

    def _tally(self) -> ContinuedUsage:
        return ContinuedUsage(self._sent_tokens, whole=self.tokens if self.finished else None)

    def _joiner(self) -> ContinuationJoiner | None:
        """None when the text is whole. Only engines that take an assistant's words as a beginning repeat
        them: those that are told to continue have an option of their own for it, completions ``echo``."""
        if self.finished:
            return None
        head, echo = self.text[len(self._sent) :], self._before + self._sent
        told_apart = self._transcript.events >= ECHO_EVENTS or (head and not echo.startswith(head))
        echo = echo if self._mode == PREFILL and told_apart else ""
        return ContinuationJoiner(self.text, head=head, echo=echo, stops=self._original.stops)
