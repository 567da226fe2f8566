"""What an engine is going to say to a request: all of an answer, or the rest of one that another began."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tests.support.scripted_engine.script import (
    Script,
    messages_of,
    prompt_of,
    tag_of,
    text_of,
    token_of,
    tokens_of,
)

_FIRST_TOKEN = re.compile(r"0:[0-9a-f]{6} ")


class NotContinuable(Exception):
    """The request is put in a way that this engine refuses, as real ones do."""


@dataclass(frozen=True, slots=True)
class Planned:
    """The tokens ``first`` to ``last`` of the answer to ``prompt``."""

    prompt: str
    prompt_tokens: int
    first: int
    last: int
    stopped: bool
    """It comes to its own end, not to the length the request allows."""
    so_far: str = ""
    """What was there before."""
    rest: str = ""
    """What is missing of the token ``first - 1``."""
    pad_bytes: int = 0

    @property
    def tokens(self) -> list[str]:
        """What is said now, token by token."""
        tag = tag_of(self.prompt)
        said = [token_of(tag, index, self.pad_bytes) for index in range(self.first, self.last)]
        return [self.rest, *said] if self.rest else said


def plan(route: str, body: Mapping[str, Any], script: Script, *, continues: bool = True) -> Planned:
    """The answer to ``body``. Raises :class:`NotContinuable`.

    A correct beginning of the answer is gone on with; after any other the answer is of another prompt, so
    that it shows.
    """
    prompt, so_far = _split(route, body) if continues else (prompt_of(body), "")
    first, rest, known = _place(prompt, so_far, script.pad_bytes)
    if not known:
        prompt, first, rest = f"{prompt}\n{so_far}", 0, ""
    length = allowed_tokens(body)
    last = max(script.tokens, first) if length is None else first + max(0, length - bool(rest))
    if length is None and script.ends_after:
        last = script.ends_after
    stopped = bool(script.ends_after) and script.ends_after <= last
    if stopped:
        last = max(first, script.ends_after)
    words = len(prompt.split()) + (first - bool(rest) if known else 0)
    return Planned(prompt, max(1, words), first, last, stopped, so_far, rest, script.pad_bytes)


def allowed_tokens(body: Mapping[str, Any]) -> int | None:
    """How many tokens the request allows; None if it does not say."""
    for key in ("max_completion_tokens", "max_tokens", "max_output_tokens"):
        if isinstance(body.get(key), int):
            return int(body[key])
    return None


def _split(route: str, body: Mapping[str, Any]) -> tuple[str, str]:
    """What was asked, and what of the answer is there already."""
    if route == "completions":
        return _split_text(prompt_of(body))
    messages = messages_of(body)
    begun = bool(messages) and messages[-1].get("role") == "assistant"
    if route == "chat":
        wanted = bool(body.get("continue_final_message"))
        if wanted and not begun:
            raise NotContinuable("continue_final_message needs a final message of the assistant")
        if wanted and body.get("add_generation_prompt", True):
            raise NotContinuable("continue_final_message and add_generation_prompt exclude each other")
        begun = wanted
    if not begun:
        return prompt_of(body), ""
    return prompt_of({"messages": messages[:-1]}), text_of(messages[-1].get("content"))


def _split_text(text: str) -> tuple[str, str]:
    """A bare prompt and the beginning of its answer, told apart by the tags."""
    for found in _FIRST_TOKEN.finditer(text):
        prompt, so_far = text[: found.start()], text[found.start() :]
        if so_far.startswith(token_of(tag_of(prompt), 0)) and _place(prompt, so_far, 0)[2]:
            return prompt, so_far
    return text, ""


def _place(prompt: str, so_far: str, pad_bytes: int) -> tuple[int, str, bool]:
    """The token that comes next, what is missing of the one before, and whether ``so_far`` is a beginning."""
    tag, text, index = tag_of(prompt), "", 0
    while len(text) < len(so_far):
        text += token_of(tag, index, pad_bytes)
        index += 1
    return index, text[len(so_far) :], text.startswith(so_far)


__all__ = ["NotContinuable", "Planned", "allowed_tokens", "plan", "tokens_of"]
