"""What the client asked, in so far as it decides whether and how an answer can go on."""

from collections.abc import Iterator, Mapping
from typing import Any, TypeGuard

import orjson

from gateway.dispatch.recovery.editing import NotContinuable, Outline
from gateway.dispatch.recovery.splicing import count

MOST_MARKS = 65_536
"""Commas and brackets of a request that is parsed on the event loop when its engine is lost, which takes 4 ms
then. A mebibyte, which is what is kept, has fewer even if it is prose or code."""

MOST_COLONS = 32_768
"""Colons of it: there are as many names to parse at the most, which take longer than values."""

MARK_US = 0.07
"""What each of them takes to parse."""

BYTES_PER_US = 300
"""So many bytes of a long string are parsed in a microsecond, were all of them escapes."""

MOST_MEMBERS = 1000
"""At the top of a request. What clients send has some thirty."""

MOST_TOOLS = 4096
MOST_STOPS = 1024
STOP_CHARS = 4096
"""The most characters of all stop strings together: each beginning of one is looked for at the end of the
answer's text."""

LIMITS = ("max_completion_tokens", "max_tokens", "max_output_tokens", "n_predict")

WHOLE_LIMIT = "continued_max_tokens"
"""How long the whole answer may be. An event may hold several tokens, and how many it does not say: engines
that count what they continue (the built-in one) need not rely on our count. Others look at ``max_tokens``
only; sent to those that are told to continue, by a member that is no more of OpenAI's than this one."""

LISTS = ("messages", "input")
"""Members whose last element decides how the answer so far is added: after that element, or to it."""

CHANGED = frozenset(
    (*LIMITS, *LISTS, "prompt", "min_tokens", "continue_final_message", "add_generation_prompt", WHOLE_LIMIT)
)
"""Members that continuing may change."""

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


class OriginalRequest:
    """The body of a request, whose other methods may be called when :meth:`read` is through.

    Nothing of the parsed request is kept but what is asked for here: of a list of messages the last one.
    """

    def __init__(self, body: bytes) -> None:
        self.body = body
        self.members: Mapping[str, Any] = {}
        """Those of ``CHANGED``; ``messages`` and ``input`` without all but their last element."""
        self.outline = Outline(body, CHANGED)
        self.stops: list[str] = []
        """Every stop string."""
        self.cost_us = 0
        """About how many microseconds it took to parse."""
        self.wants_usage = False
        self.choices = 1
        """How many choices the request asks for."""
        self.most_tokens: int | None = None
        """How many tokens the answer may have, if the request says so."""
        self._never: str | None = None
        self._begun: str | None = None
        """Why the request cannot go on at all, and why not once there is text."""

    def read(self) -> Iterator[int]:
        """To be gone through once. Gives after each slice some microseconds that it took. Raises
        :class:`NotContinuable` when the body is none that could be understood."""
        marks = sum(map(self.body.count, (b",", b"[", b"{")))
        self.cost_us = 20 + int(min(marks, MOST_MARKS) * MARK_US) + len(self.body) // BYTES_PER_US
        if marks > MOST_MARKS or self.body.count(b":") > MOST_COLONS:
            raise NotContinuable("the request has too many values")
        try:
            members = orjson.loads(self.body)
        except orjson.JSONDecodeError:
            members = None
        if not isinstance(members, dict):
            raise NotContinuable("the request was not kept, or is not JSON")
        if len(members) > MOST_MEMBERS:
            raise NotContinuable("the request has too many members")
        self._note(members)
        del members  # many may be read at once, and parsed they take ten times as much memory
        yield self.cost_us
        yield from self.outline.find()

    def _note(self, members: dict[str, Any]) -> None:
        options = members.get("stream_options")
        self.wants_usage = isinstance(options, dict) and options.get("include_usage") is True
        self.choices = _choices(members)
        limits = [value for value in map(members.get, LIMITS) if _is_count(value) and value > 0]
        self.most_tokens = min(limits, default=None)
        self._never = _asked(members, _NEVER)
        self._begun = self._never or _asked(members, _STEERING) or _steering(members)
        if self._begun is None:
            self.stops = _stops(members)
            if len(self.stops) > MOST_STOPS or sum(map(len, self.stops)) > STOP_CHARS:
                self._begun, self.stops = "the request has more stop strings than are looked for", []
        kept = {name: value for name, value in members.items() if name in CHANGED}
        for name in LISTS:
            if isinstance(kept.get(name), list):
                kept[name] = kept[name][-1:]
        if isinstance(kept.get("prompt"), list):
            kept["prompt"] = kept["prompt"][:2]
        self.members = kept

    def check(self, *, begun: bool) -> None:
        """Raises :class:`NotContinuable` for what was asked; ``begun``: there is text already."""
        reason = self._begun if begun else self._never
        if reason is not None:
            raise NotContinuable(reason)

    def limited(self, tokens: int) -> dict[str, bytes]:
        """The members that say how long the answer may be or must be, less ``tokens``."""
        changes: dict[str, bytes] = {}
        for name in LIMITS:
            value = self.members.get(name)
            if _is_count(value) and value > 0:
                changes[name] = orjson.dumps(max(1, value - tokens))
        least = self.members.get("min_tokens")
        if _is_count(least) and least > 0:
            changes["min_tokens"] = orjson.dumps(max(0, least - tokens))
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
        return self.outline.with_members(changes)


def _asked(members: Mapping[str, Any], ruled_out: Mapping[str, tuple[Any, ...]]) -> str | None:
    """Which of them the request sets to more than nothing, as a reason; None when it sets none."""
    for name, neutral in ruled_out.items():
        value = members.get(name)
        if value is not None and not any(_same(value, other) for other in neutral):
            return f"the request sets {name!r}"
    return None


def _steering(members: Mapping[str, Any]) -> str | None:
    """Why the request cannot go on once there is text; None when it can."""
    if any(name.startswith("guided_") and value is not None for name, value in members.items()):
        return "the answer is held to a grammar"
    choice = members.get("tool_choice")
    kind = choice.get("type") if isinstance(choice, dict) else choice
    if kind not in (None, "none", "auto"):
        return "the request demands a tool call"
    if isinstance(members.get("function_call"), dict):
        return "the request demands a function call"
    text = members.get("text")
    shape = text.get("format") if isinstance(text, dict) else None
    if shape is not None and not (isinstance(shape, dict) and shape.get("type") == "text"):
        return "the answer is held to a schema"
    include = members.get("include")
    if isinstance(include, list) and "message.output_text.logprobs" in include:
        return "the request asks for logprobs"
    tools = members.get("tools")
    tools = tools if isinstance(tools, list) else []
    if len(tools) > MOST_TOOLS:
        return f"the request offers more than {MOST_TOOLS} tools"
    if any(
        not isinstance(tool, dict) or tool.get("type") not in (None, "function", "custom") for tool in tools
    ):
        return "the request offers tools that the engine runs itself"
    return None


def _stops(members: Mapping[str, Any]) -> list[str]:
    """Every stop string, and one more than are looked for at the most."""
    found: list[str] = []
    for name in ("stop", "stop_sequences"):
        value = members.get(name)
        items = value[: MOST_STOPS + 1] if isinstance(value, list) else [value]
        found += [item for item in items if isinstance(item, str) and item]
    return found


def _choices(members: Mapping[str, Any]) -> int:
    """How many choices the request asks for: ``n`` of each prompt. A list of numbers is one prompt."""
    prompt = members.get("prompt")
    listed = prompt if isinstance(prompt, list) and prompt and not _is_count(prompt[0]) else []
    prompts = (
        sum(isinstance(each, str | list) for each in listed) if len(listed) < MOST_MEMBERS else len(listed)
    )
    return (count(members.get("n"), 1) or 1) * (prompts or 1)


def _is_count(value: Any) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool)


def _same(value: Any, other: Any) -> bool:
    """Equal, with 0 and 1 kept apart from false and true."""
    return bool(value == other) and isinstance(value, bool) == isinstance(other, bool)
