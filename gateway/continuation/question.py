"""What the client asked, in so far as it decides whether and how an answer can go on."""

from collections.abc import Mapping
from typing import Any, TypeGuard

import orjson

from gateway.continuation.editing import dumped, with_members
from gateway.continuation.errors import NotContinuable

MOST_MARKS = 65_536
"""Commas and brackets of a request that is read and changed on the event loop when its engine is lost. A
mebibyte, which is what is kept, has fewer even if it is prose or code."""

LIMITS = ("max_completion_tokens", "max_tokens", "max_output_tokens", "n_predict")

_NEVER: Mapping[str, tuple[Any, ...]] = {
    "n": (1,),
    "best_of": (1,),
    "use_beam_search": (False,),
    "previous_response_id": (),
    "conversation": (),
    "background": (False,),
    "store": (False,),
}
"""What rules out another engine, and the values that ask for nothing. Several answers at once cannot be told
apart at the seam. Responses that refer to others, or that shall be found again, are known to one engine
only; ``store`` left out is taken for "no", as engines take it."""

_STEERING: Mapping[str, tuple[Any, ...]] = {
    # what a continuation has no numbers for
    "logprobs": (False,),
    "top_logprobs": (0,),
    "prompt_logprobs": (),
    "n_probs": (0,),
    "return_token_ids": (False,),
    # what is counted, or followed, from the beginning of the answer
    "presence_penalty": (0,),
    "frequency_penalty": (0,),
    "mirostat": (0,),
    "logits_processors": ([],),
    "response_format": ({"type": "text"},),
    "structured_outputs": (),
    "structural_tag": (),
    "grammar": ("",),
    "json_schema": (),
    "ebnf": (),
    "regex": (),
    "stop_regex": (),
    # what changes with the prompt
    "echo": (False,),
    "suffix": ("",),
    "prompt_embeds": (),
    "truncate_prompt_tokens": (),
    "truncation": ("disabled",),
    # other output than text
    "modalities": (["text"],),
    "audio": (),
    "thinking": ({"type": "disabled"},),
    "prediction": (),
    "web_search_options": (),
}
"""What rules out going on once there is text, and the values that ask for nothing."""


class Question:
    """The body of a request. Raises :class:`NotContinuable` when it is none that could be understood."""

    def __init__(self, body: bytes) -> None:
        if sum(map(body.count, (b",", b"[", b"{"))) > MOST_MARKS:
            raise NotContinuable("the request has too many values")
        try:
            members = orjson.loads(body)
        except orjson.JSONDecodeError:
            members = None
        if not isinstance(members, dict):
            raise NotContinuable("the request was not kept, or is not JSON")
        self.body = body
        self.members: Mapping[str, Any] = members

    @property
    def stops(self) -> list[str]:
        """Every stop string."""
        found: list[str] = []
        for name in ("stop", "stop_sequences"):
            value = self.members.get(name)
            items = value if isinstance(value, list) else [value]
            found += [item for item in items if isinstance(item, str) and item]
        return found

    @property
    def wants_usage(self) -> bool:
        options = self.members.get("stream_options")
        return isinstance(options, dict) and options.get("include_usage") is True

    @property
    def most_tokens(self) -> int | None:
        """How many tokens the answer may have, if the request says so."""
        found = [self.members.get(name) for name in LIMITS]
        limits = [value for value in found if _is_count(value) and value > 0]
        return min(limits, default=None)

    def check(self, *, begun: bool) -> None:
        """Raises :class:`NotContinuable` for what was asked; ``begun``: there is text already."""
        for name, neutral in (*_NEVER.items(), *(_STEERING.items() if begun else ())):
            value = self.members.get(name)
            if value is not None and not any(_same(value, other) for other in neutral):
                raise NotContinuable(f"the request sets {name!r}")
        if begun:
            self._check_steering()

    def _check_steering(self) -> None:
        if any(name.startswith("guided_") and value is not None for name, value in self.members.items()):
            raise NotContinuable("the answer is held to a grammar")
        choice = self.members.get("tool_choice")
        kind = choice.get("type") if isinstance(choice, dict) else choice
        if kind not in (None, "none", "auto"):
            raise NotContinuable("the request demands a tool call")
        if isinstance(self.members.get("function_call"), dict):
            raise NotContinuable("the request demands a function call")
        text = self.members.get("text")
        shape = text.get("format") if isinstance(text, dict) else None
        if shape is not None and not (isinstance(shape, dict) and shape.get("type") == "text"):
            raise NotContinuable("the answer is held to a schema")
        include = self.members.get("include")
        if isinstance(include, list) and "message.output_text.logprobs" in include:
            raise NotContinuable("the request asks for logprobs")
        for tool in self._tools():
            if not isinstance(tool, dict) or tool.get("type") not in (None, "function", "custom"):
                raise NotContinuable("the request offers tools that the engine runs itself")

    def _tools(self) -> list[Any]:
        tools = self.members.get("tools")
        return tools if isinstance(tools, list) else []

    def limited(self, tokens: int) -> dict[str, bytes]:
        """The members that say how long the answer may be or must be, less ``tokens``."""
        changes: dict[str, bytes] = {}
        for name in LIMITS:
            value = self.members.get(name)
            if _is_count(value) and value > 0:
                changes[name] = dumped(max(1, value - tokens))
        least = self.members.get("min_tokens")
        if _is_count(least) and least > 0:
            changes["min_tokens"] = dumped(max(0, least - tokens))
        return changes

    def shortest(self, limit_name: str) -> dict[str, bytes]:
        """The members that ask for one token, ``limit_name`` being how the route calls the limit."""
        names = [name for name in LIMITS if self.members.get(name) is not None] or [limit_name]
        changes = dict.fromkeys(names, b"1")
        if self.members.get("min_tokens") is not None:
            changes["min_tokens"] = b"0"
        return changes

    def changed(self, changes: Mapping[str, bytes]) -> bytes:
        """The body with these members and all else as the client wrote it."""
        return with_members(self.body, changes)


def _is_count(value: Any) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool)


def _same(value: Any, other: Any) -> bool:
    """Equal, with 0 and 1 kept apart from false and true."""
    return bool(value == other) and isinstance(value, bool) == isinstance(other, bool)
