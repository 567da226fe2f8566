"""Finds members named usage in JSON that is not parsed, and reads what they count. Pure.

In a JSON string quotes are escaped, so text that a model writes cannot look like the member ``"usage": {``.
"""

import json
import re
from collections import deque
from typing import Any

from shared.protocol.messages import Usage

KIB = 1024

USAGE_OBJECT_BYTES = 8 * KIB
"""Longest usage object that is read."""

COUNT_MAX = 2**53

USAGE_MEMBER = re.compile(rb'"usage"\s{0,8}:\s{0,8}\{')
_MEMBER_BYTES = 32
"""More than the longest match."""
_WINDOW_BYTES = 64 * KIB
"""The last member is looked for in so many bytes at a time, from the end: all matches in them are counted."""

_DECODER = json.JSONDecoder()


def read_usage(text: bytes, *, last: bool = True) -> Usage | None:
    """The last usage object in ``text``, which may be cut at the front, or the first; None when there is
    none."""
    at = last_member(text, len(text)) if last else 0
    found = USAGE_MEMBER.search(text, at) if at >= 0 else None
    if found is None:
        return None
    start = found.end() - 1
    try:
        value, _ = _DECODER.raw_decode(text[start : start + USAGE_OBJECT_BYTES].decode(errors="replace"))
    except (ValueError, RecursionError):  # the latter for what is nested too deeply
        return None
    return usage_from(value) if isinstance(value, dict) else None


def last_member(data: bytes, end: int) -> int:
    """Where the last member named usage that is an object begins before ``end``; -1 if there is none."""
    upper = data.rfind(b'"usage"', 0, end) + 1
    if upper and USAGE_MEMBER.match(data, upper - 1, end):
        return upper - 1
    while upper > 0:
        lower = max(0, upper - _WINDOW_BYTES)
        members = USAGE_MEMBER.finditer(data, lower, min(end, upper + _MEMBER_BYTES))
        found = deque(members, maxlen=1)
        if found:
            return found[0].start()
        upper = lower
    return -1


def usage_from(value: dict[str, Any]) -> Usage | None:
    """The counts in an OpenAI or Anthropic usage object; None when it holds none."""
    prompt = _count(value, "prompt_tokens", "input_tokens")
    completion = _count(value, "completion_tokens", "output_tokens")
    total = _count(value, "total_tokens")
    if prompt is None and completion is None and total is None:
        return None
    cached = 0
    for details in (value.get("prompt_tokens_details"), value.get("input_tokens_details")):
        if isinstance(details, dict):
            cached = _count(details, "cached_tokens") or cached
    if prompt is None:
        prompt = max(0, (total or 0) - (completion or 0))
    # Anthropic counts what it read from or wrote to its cache apart from the rest of the prompt.
    read, written = _count(value, "cache_read_input_tokens"), _count(value, "cache_creation_input_tokens")
    return Usage(prompt + (read or 0) + (written or 0), completion or 0, cached or read or 0)


def _count(value: dict[str, Any], *names: str) -> int | None:
    for name in names:
        item = value.get(name)
        if isinstance(item, int) and not isinstance(item, bool) and 0 <= item <= COUNT_MAX:
            return item
    return None
