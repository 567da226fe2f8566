"""Reads token counts out of engines' responses: ``usage`` objects, and shapes of the engines' own. Pure.

Usage objects are found in JSON that is not parsed: quotes in a JSON string are escaped, so text that a model
writes cannot look like the member ``"usage": {``. Besides OpenAI's and Anthropic's are understood, in a JSON
document, in each member of a list of them, in the last lines of JSON lines and in the last events of a stream
of server-sent events:

- Ollama: ``prompt_eval_count``, ``eval_count`` (docs/api.md);
- llama.cpp: ``tokens_evaluated``, ``tokens_predicted``, else ``timings`` (tools/server/README.md);
- SGLang: ``meta_info`` with ``prompt_tokens``, ``completion_tokens`` (docs: native APIs);
- TGI: ``details`` with ``generated_tokens``, ``input_length``, ``prefill``, ``best_of_sequences``, and the
  header fields ``x-prompt-tokens``, ``x-generated-tokens`` (router/src/server.rs);
- LM Studio: ``stats`` with ``input_tokens``, ``total_output_tokens`` (docs: REST API v1).

What a model writes cannot be taken for them: in a whole document only its outermost members count, and of one
that is cut at the front only what follows the last quotation mark that could end such a text.
"""

import json
import re
from collections import deque
from collections.abc import Iterable, Mapping
from typing import Any

import orjson

from shared.protocol.messages import Headers, Usage

COUNT_MAX = 2**53
KIB = 1024

USAGE_OBJECT_BYTES = 8 * KIB
"""Longest usage object that is read."""

USAGE_MEMBER = re.compile(rb'"usage"\s{0,8}:\s{0,8}\{')
_MEMBER_BYTES = 32
"""More than the longest match."""
_WINDOW_BYTES = 64 * KIB
"""The last member is looked for in so many bytes at a time, from the end: all matches in them are counted."""

_DECODER = json.JSONDecoder()

DOCUMENTS = 256
"""How many documents at the end of an answer are looked at."""
CUT_BYTES = 4096
"""How many bytes at the end of a document without its beginning are looked at."""

_DETAILS = ("prompt_tokens_details", "input_tokens_details")
_OF_CACHES = frozenset((*_DETAILS, "cache_read_input_tokens", "cache_creation_input_tokens"))
USAGE_HEADERS = frozenset(("x-prompt-tokens", "x-generated-tokens", "x-compute-tokens"))
"""Fields of a response's head that tell of usage."""
_FLAT = re.compile(
    rb'"(prompt_eval_count|eval_count|tokens_evaluated|tokens_predicted|prompt_tokens|completion_tokens'
    rb'|cached_tokens|generated_tokens|input_length|input_tokens|total_output_tokens)"\s*:\s*(\d{1,16})\b'
)


def native_usage(tail: bytes, *, whole: bool) -> Usage | None:
    """What the end of an answer says; ``whole``: it is all of it. None when it says nothing."""
    if whole:
        try:
            return usage_of_document(orjson.loads(tail))
        except orjson.JSONDecodeError:
            pass  # several documents, or something else
    latest: dict[int | None, Usage] = {}
    for line in _lines(tail):
        try:
            document = orjson.loads(line)
        except orjson.JSONDecodeError:
            continue
        usage = usage_of_document(document)
        if usage is not None:  # the latest of each of several answers that come side by side (SGLang's)
            index = document.get("index") if isinstance(document, dict) else None
            latest.setdefault(index if isinstance(index, int) else None, usage)
    return _together(latest.values()) or (None if whole else _of_cut(tail))


def usage_in_headers(headers: Headers) -> Usage | None:
    """TGI's, and the count of TEI for what it embeds."""
    values = {name: int(value) for name, value in headers if name in USAGE_HEADERS and _is_count(value)}
    if not values:
        return None
    prompt = values.get("x-prompt-tokens", values.get("x-compute-tokens", 0))
    return Usage(prompt, values.get("x-generated-tokens", 0))


def _lines(tail: bytes) -> Iterable[bytes]:
    """The last ones first, without what server-sent events put before them."""
    lines = tail.replace(b"\r", b"\n").rstrip(b"\n").rsplit(b"\n", 2 * DOCUMENTS)
    for line in reversed(lines[-2 * DOCUMENTS :]):
        line = line.removeprefix(b"data:").strip()
        if line.startswith((b"{", b"[")):
            yield line


def usage_of_document(document: Any) -> Usage | None:
    """What a parsed answer says, or what the members of a list of answers say together; None: nothing."""
    if isinstance(document, list):
        return _together(filter(None, map(_of_object, document[:DOCUMENTS])))
    return _of_object(document)


def _of_object(value: Any) -> Usage | None:
    if not isinstance(value, dict):
        return None
    result = value.get("result")  # LM Studio: the last event of a stream has it all in here
    stats = (result if isinstance(result, dict) else value).get("stats")
    return (
        _usage(value.get("usage"), "prompt_tokens", "completion_tokens")
        or _usage(value, "prompt_eval_count", "eval_count")
        or _llama_cpp(value)
        or _usage(value.get("meta_info"), "prompt_tokens", "completion_tokens", "cached_tokens")
        or _tgi(value.get("details"))
        or _usage(stats, "input_tokens", "total_output_tokens")
    )


def _llama_cpp(value: Mapping[str, Any]) -> Usage | None:
    timings = value.get("timings")
    cached = _count(timings, "cache_n") or 0
    if usage := _usage(value, "tokens_evaluated", "tokens_predicted"):
        return Usage(usage.prompt_tokens, usage.completion_tokens, min(cached, usage.prompt_tokens))
    if usage := _usage(timings, "prompt_n", "predicted_n"):
        return Usage(usage.prompt_tokens + cached, usage.completion_tokens, cached)
    return None


def _tgi(details: Any) -> Usage | None:
    generated = _count(details, "generated_tokens")
    if generated is None:
        return None
    prefill, others = details.get("prefill"), details.get("best_of_sequences")
    for other in others[:DOCUMENTS] if isinstance(others, list) else ():
        generated += _count(other, "generated_tokens") or 0
    prompt = _count(details, "input_length")
    if prompt is None:
        prompt = len(prefill) if isinstance(prefill, list) else 0
    return Usage(prompt, generated)


def _of_cut(tail: bytes) -> Usage | None:
    """The counts of a document whose beginning is missing: all formats have them at the end."""
    end = tail[-CUT_BYTES:]
    end = end[end.rfind(b'\\"') + 1 :]
    found = {name.decode(): int(digits) for name, digits in _FLAT.findall(end)}
    for prompt, completion in (
        ("prompt_eval_count", "eval_count"),
        ("tokens_evaluated", "tokens_predicted"),
        ("prompt_tokens", "completion_tokens"),
        ("input_length", "generated_tokens"),
        ("input_tokens", "total_output_tokens"),
    ):
        if completion in found:
            return Usage(found.get(prompt, 0), found[completion], found.get("cached_tokens", 0))
    return None


def _together(usages: Iterable[Usage]) -> Usage | None:
    listed = list(usages)
    if not listed:
        return None
    return Usage(
        sum(usage.prompt_tokens for usage in listed),
        sum(usage.completion_tokens for usage in listed),
        sum(usage.cached_tokens for usage in listed),
    )


def _usage(value: Any, prompt: str, completion: str, *cached: str) -> Usage | None:
    """The counts of these names in ``value``; None when it has neither of the first two."""
    counts = _count(value, prompt), _count(value, completion)
    if counts == (None, None):
        return None
    return Usage(counts[0] or 0, counts[1] or 0, _count(value, *cached) or 0)


def _is_count(value: str) -> bool:
    return len(value) <= 15 and value.isascii() and value.isdigit()


def read_usage(text: bytes, *, last: bool = True) -> Usage | None:
    """The last usage object in ``text``, which may be cut at the front, or the first; None without one."""
    at = last_member(text, len(text)) if last else 0
    found = USAGE_MEMBER.search(text, at) if at >= 0 else None
    if found is None:
        return None
    start = found.end() - 1
    try:
        value, _ = _DECODER.raw_decode(text[start : start + USAGE_OBJECT_BYTES].decode(errors="replace"))
    except (ValueError, RecursionError):  # the latter for what is nested too deeply
        return None
    return usage_from(value)


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


def usage_from(value: Any) -> Usage | None:
    """The counts in an OpenAI or Anthropic usage object; None when it holds none."""
    if not isinstance(value, dict):
        return None
    prompt: Any = value.get("prompt_tokens")
    completion: Any = value.get("completion_tokens")
    integers = type(prompt) is int and type(completion) is int
    if not (integers and COUNT_MAX >= prompt >= 0 <= completion <= COUNT_MAX):
        counts = _other_counts(value)
        if counts is None:
            return None
        prompt, completion = counts
    if _OF_CACHES.isdisjoint(value):
        return Usage(prompt, completion, 0)
    cached = 0
    for member in _DETAILS:
        if member in value:
            cached = _count(value[member], "cached_tokens") or cached
    if "cache_read_input_tokens" in value or "cache_creation_input_tokens" in value:
        # Anthropic counts what it read from or wrote to its cache apart from the rest of the prompt.
        read = _count(value, "cache_read_input_tokens") or 0
        prompt += read + (_count(value, "cache_creation_input_tokens") or 0)
        cached = cached or read
    return Usage(prompt, completion, cached)


def _other_counts(value: dict[str, Any]) -> tuple[int, int] | None:
    """What went in and what came out, where OpenAI's two members do not both say it; None: nothing does."""
    prompt = _count(value, "prompt_tokens", "input_tokens")
    completion = _count(value, "completion_tokens", "output_tokens")
    if prompt is None or completion is None:
        total = _count(value, "total_tokens")
        if prompt is None and completion is None and total is None:
            return None
        if prompt is None:
            prompt = max(0, (total or 0) - (completion or 0))
    return prompt, completion or 0


def _count(value: Any, *names: str) -> int | None:
    """The first of these members of ``value`` that is a count."""
    if not isinstance(value, dict):
        return None
    for name in names:
        if name in value:
            item = value[name]
            if type(item) is int and 0 <= item <= COUNT_MAX:
                return item
    return None
