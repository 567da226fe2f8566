"""Between text and tokens: a chat as the tokens to go on from, and tokens as text while they come.

What is said has no half characters and nothing past a stop string.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import jinja2

from agent.engines.torch.chat_requests import ChatRequest
from agent.engines.torch.errors import InvalidRequest
from agent.engines.torch.tool_prompt import PlainMessage, tools_in_words

_SEAM_TOKENS = 8
"""So many tokens before a text decide how its first ones are decoded."""

_REPLACEMENT = "\ufffd"

_HELD_TOKENS = 8
"""A UTF-8 character has at most 4 bytes, so at most 4 byte tokens: more held tokens than that are not half a
character but bytes that are none, or real U+FFFD, and holding them longer would help nobody."""


def plain_text(tokenizer: Any, token_ids: list[int]) -> str:
    """The text of ids without special tokens and without the tokenizer's tidying of spaces, which would make
    a piece of text depend on what follows it."""
    text = tokenizer.decode(token_ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)
    return str(text)


@dataclass(frozen=True, slots=True)
class Rendered:
    """``continued``: how many of ``ids``, at their end, are the answer's beginning; None: it has none."""

    ids: tuple[int, ...]
    continued: int | None = None


def render(tokenizer: Any, request: ChatRequest) -> Rendered:
    """The tokens of a chat. Control tokens written by a user count as the text they are written in.

    Raises :class:`InvalidRequest` for messages that the model's template refuses.
    """
    messages = [message.plain() for message in request.messages]
    tools = [tool.plain() for tool in request.offered]
    try:
        if not knows_tools(tokenizer):
            messages, tools = tools_in_words(messages, tools), []
        if not request.continue_final_message:
            return Rendered(
                _applied(tokenizer, messages, tools, add_generation_prompt=request.add_generation_prompt)
            )
        return _continued(tokenizer, messages, tools)
    except (jinja2.TemplateError, ValueError, TypeError, RecursionError) as error:
        raise InvalidRequest(
            f"The model's chat template does not take these messages: {error}", param="messages"
        ) from error


def knows_tools(tokenizer: Any) -> bool:
    """Whether the model's chat template has a place for tools."""
    return "tools" in template_of(tokenizer)


def template_of(tokenizer: Any) -> str:
    """The chat template; of several, all of them."""
    template = getattr(tokenizer, "chat_template", None) or ""
    return "\n".join(template.values()) if isinstance(template, dict) else str(template)


def _continued(tokenizer: Any, messages: Sequence[PlainMessage], tools: Sequence[Any]) -> Rendered:
    """What the model had before it when it wrote the last message, and then that message's own tokens.

    The template with the last message in it would do for many models. But templates tidy messages up (white
    space at the end, reasoning), and tokens may merge across the place where the answer begins; then the
    model would go on from another text than the one it left off at.
    """
    text = messages[-1]["content"]
    try:
        before = _applied(tokenizer, messages[:-1], tools, add_generation_prompt=True)
    except (jinja2.TemplateError, ValueError, IndexError):
        before = ()  # a template that wants something before the answer
    begun = tuple(tokenizer.encode(text, add_special_tokens=False, split_special_tokens=True))
    if before and _continues(tokenizer, before, begun, text):
        return Rendered(before + begun, len(begun))
    whole = _applied(tokenizer, messages, tools, continue_final_message=True)
    shared = 0
    while shared < min(len(before), len(whole)) and before[shared] == whole[shared]:
        shared += 1
    return Rendered(whole, len(whole) - shared if before else len(begun))


def _continues(tokenizer: Any, before: tuple[int, ...], begun: tuple[int, ...], text: str) -> bool:
    """Whether ``begun`` after ``before`` is decoded as ``text``: some tokenizers put a space before it."""
    seam = list(before[-_SEAM_TOKENS:])
    return plain_text(tokenizer, [*seam, *begun]) == plain_text(tokenizer, seam) + text


def _applied(
    tokenizer: Any, messages: Sequence[PlainMessage], tools: Sequence[Any], **how: bool
) -> tuple[int, ...]:
    found = tokenizer.apply_chat_template(
        list(messages), tools=list(tools) or None, return_dict=False, sanitize_control_tokens=True, **how
    )
    return tuple(found)


class IncrementalDecoder:
    """Turns token ids into text piece by piece; the pieces joined are the text of all ids.

    ``decode`` gives the text of a run of ids. As tokenizers decode a token by its neighbours (spaces, bytes
    of one character), each step decodes the last piece's ids again and emits what was added.
    """

    def __init__(self, decode: Callable[[list[int]], str]) -> None:
        self._decode = decode
        self._context: list[int] = []
        self._held: list[int] = []

    def push(self, token_ids: Iterable[int]) -> str:
        """The text that can be said now; empty while a character is incomplete."""
        self._held.extend(token_ids)
        if not self._held:
            return ""
        text = self._new_text()
        incomplete = not text or text.endswith(_REPLACEMENT)
        if incomplete and len(self._held) <= _HELD_TOKENS:
            return ""
        self._context, self._held = self._held, []
        return text

    def finish(self) -> str:
        """What was held back, without the incomplete character at its end."""
        if not self._held:
            return ""
        text = self._new_text().rstrip(_REPLACEMENT)
        self._context, self._held = [], []
        return text

    def _new_text(self) -> str:
        before = self._decode(self._context) if self._context else ""
        return self._decode(self._context + self._held)[len(before) :]


class StopStrings:
    """Passes text through up to, and without, the stop string in it that is whole first."""

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(stop for stop in stops if stop)
        self._held = ""
        self.found = False

    def push(self, text: str) -> str:
        """The text that can be said now; what may be the beginning of a stop string is held back."""
        if self.found:
            return ""
        text = self._held + text
        spans = [(text.find(stop) + len(stop), text.find(stop)) for stop in self._stops if stop in text]
        if spans:
            self.found, self._held = True, ""
            return text[: min(spans)[1]]
        held = self._partial_length(text)
        self._held = text[len(text) - held :]
        return text[: len(text) - held]

    def finish(self) -> str:
        """What was held back, as no stop string came of it."""
        held, self._held = self._held, ""
        return "" if self.found else held

    def _partial_length(self, text: str) -> int:
        """The length of the longest end of ``text`` that begins a stop string."""
        longest = 0
        for stop in self._stops:
            for length in range(min(len(stop) - 1, len(text)), longest, -1):
                if text.endswith(stop[:length]):
                    longest = length
                    break
        return longest


class TextAssembler:
    """Decoder and stop strings in one: token ids in, sayable text out."""

    def __init__(self, decode: Callable[[list[int]], str], stops: Sequence[str] = ()) -> None:
        self._decoder = IncrementalDecoder(decode)
        self._stops = StopStrings(stops)
        self.decoded = 0
        """Characters of text so far, with those that are held back."""

    @property
    def stopped(self) -> bool:
        """A stop string was found: nothing more will be said."""
        return self._stops.found

    def push(self, token_ids: Iterable[int]) -> str:
        return self._pass(self._decoder.push(token_ids))

    def finish(self) -> str:
        return self._pass(self._decoder.finish()) + self._stops.finish()

    def _pass(self, text: str) -> str:
        self.decoded += len(text)
        return self._stops.push(text)
