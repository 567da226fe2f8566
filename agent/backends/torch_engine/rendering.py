"""A chat as the tokens that the model is to go on from."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jinja2

from agent.backends.torch_engine.faults import InvalidRequest
from agent.backends.torch_engine.models import plain_text
from agent.backends.torch_engine.parsing import ChatRequest

_SEAM_TOKENS = 8
"""So many tokens before a text decide how its first ones are decoded."""


@dataclass(frozen=True, slots=True)
class Rendered:
    """``continued``: how many of ``ids``, at their end, are the answer's beginning; None: it has none."""

    ids: tuple[int, ...]
    continued: int | None = None


def render(tokenizer: Any, request: ChatRequest) -> Rendered:
    """The tokens of a chat. Control tokens written by a user count as the text they are written in.

    Raises :class:`InvalidRequest` for messages that the model's template refuses.
    """
    try:
        if not request.continue_final_message:
            return Rendered(
                _applied(tokenizer, request.messages, add_generation_prompt=request.add_generation_prompt)
            )
        return _continued(tokenizer, request.messages)
    except (jinja2.TemplateError, ValueError) as error:
        raise InvalidRequest(
            f"The model's chat template does not take these messages: {error}", param="messages"
        ) from error


def _continued(tokenizer: Any, messages: Sequence[Mapping[str, str]]) -> Rendered:
    """What the model had before it when it wrote the last message, and then that message's own tokens.

    The template with the last message in it would do for many models. But templates tidy messages up (white
    space at the end, reasoning), and tokens may merge across the place where the answer begins; then the
    model would go on from another text than the one it left off at.
    """
    text = messages[-1]["content"]
    try:
        before = _applied(tokenizer, messages[:-1], add_generation_prompt=True)
    except (jinja2.TemplateError, ValueError, IndexError):
        before = ()  # a template that wants something before the answer
    begun = tuple(tokenizer.encode(text, add_special_tokens=False, split_special_tokens=True))
    if before and _adds(tokenizer, before, begun, text):
        return Rendered(before + begun, len(begun))
    whole = _applied(tokenizer, messages, continue_final_message=True)
    shared = 0
    while shared < min(len(before), len(whole)) and before[shared] == whole[shared]:
        shared += 1
    return Rendered(whole, len(whole) - shared if before else len(begun))


def _adds(tokenizer: Any, before: tuple[int, ...], begun: tuple[int, ...], text: str) -> bool:
    """Whether ``begun`` after ``before`` is decoded as ``text``: some tokenizers put a space before it."""
    seam = list(before[-_SEAM_TOKENS:])
    return plain_text(tokenizer, [*seam, *begun]) == plain_text(tokenizer, seam) + text


def _applied(tokenizer: Any, messages: Sequence[Mapping[str, str]], **how: bool) -> tuple[int, ...]:
    found = tokenizer.apply_chat_template(
        [dict(message) for message in messages], return_dict=False, sanitize_control_tokens=True, **how
    )
    return tuple(found)
