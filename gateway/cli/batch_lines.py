"""Lines for ``trunkline batch``: prompts become requests, and results come into the order of these."""

import heapq
from collections.abc import Iterable, Iterator
from typing import Any

import orjson

Json = dict[str, Any]

CHAT = "/v1/chat/completions"
_TAKE_PROMPTS = ("/v1/completions", "/v1/images/generations")
"""All others call it input."""


class UnfitLine(ValueError):
    """A line that can be no request. The message names it."""


def request_lines(lines: Iterable[bytes], endpoint: str, model: str | None) -> Iterator[bytes]:
    """A line of a batch for each line that is not blank: such a line as it is, or one made of a prompt: a
    bare text, a JSON string, an object with ``prompt`` or ``messages``, or with ``input``. ``model`` is
    for those that name none. Raises UnfitLine."""
    for number, line in enumerate(lines, 1):
        text = line.strip()
        if not text:
            continue
        value = _value(text, number)
        if isinstance(value, dict) and "body" in value:
            yield text + b"\n"
            continue
        body = _body(value, endpoint, number)
        custom_id = body.pop("custom_id", f"line-{number}")
        if body.get("model") is None:
            if model is None:
                raise UnfitLine(f"line {number} names no model: give one with --model")
            body["model"] = model
        yield (
            orjson.dumps({"custom_id": custom_id, "method": "POST", "url": endpoint, "body": body}) + b"\n"
        )


def _value(text: bytes, number: int) -> Any:
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:
        if text.startswith((b"{", b"[", b'"')):
            raise UnfitLine(f"line {number} begins as JSON and is none") from None
    try:
        return text.decode()
    except UnicodeDecodeError:
        raise UnfitLine(f"line {number} is no text in UTF-8") from None


def _body(value: Any, endpoint: str, number: int) -> Json:
    found: Json = value if isinstance(value, dict) else {}
    if not isinstance(value, dict):
        found = {"prompt": value if isinstance(value, str) else orjson.dumps(value).decode()}
    if "prompt" in found and endpoint == CHAT:
        found["messages"] = [{"role": "user", "content": found.pop("prompt")}]
    elif "prompt" in found and endpoint not in _TAKE_PROMPTS:
        found["input"] = found.pop("prompt")
    if not found.keys() & {"prompt", "messages", "input"}:
        raise UnfitLine(f"line {number} has no prompt, messages, input or body")
    return found


def in_order(*files: Iterable[bytes]) -> Iterator[bytes]:
    """The lines of the files of a batch's results, each in order, together in the order of its requests. What
    is behind the last line end of a file is no line."""
    whole = ((line for line in file if line.endswith(b"\n")) for file in files)
    return heapq.merge(*whole, key=line_number)


def line_number(line: bytes) -> int:
    """Which line of the input a line of the results is of: its id, which the gateway gave, ends with that."""
    return int(orjson.loads(line)["id"].rpartition("_")[2])
