"""Streams of chat completions for the tests of translations."""

from collections.abc import Iterable, Mapping
from typing import Any

import orjson

from agent.engines.dialects.dialect import ChatUsage, JsonObject, ToolCallPiece


def _call(index: int, id_: str | None, name: str | None, arguments: str) -> dict[str, Any]:
    return {"index": index, "id": id_, "function": {"name": name, "arguments": arguments}}


def _chunk(**delta: Any) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": delta, "finish_reason": None}]}


CHUNKS: list[dict[str, Any]] = [
    _chunk(role="assistant", content="", reasoning_content="hm"),
    _chunk(content="ab"),
    _chunk(tool_calls=[_call(0, "c1", "f", '{"a"'), _call(1, "c2", "g", "{}")]),
    _chunk(tool_calls=[_call(0, None, None, ":1}")]),
    {"choices": [{"index": 0, "delta": {}, "finish_reason": "tool_calls"}]},
    {
        "choices": [],
        "usage": {
            "prompt_tokens": 5,
            "completion_tokens": 7,
            "prompt_tokens_details": {"cached_tokens": 2},
            "completion_tokens_details": {"reasoning_tokens": 1},
        },
    },
]
"""A thought, a text, and two calls that go on beside each other."""


def stream(chunks: Iterable[Mapping[str, Any]]) -> bytes:
    """They as server-sent events, ended."""
    return b"".join(b"data: %b\n\n" % orjson.dumps(chunk) for chunk in chunks) + b"data: [DONE]\n\n"


class Recorded:
    """Implements :class:`agent.engines.dialects.dialect.EventWriter`: notes what it is told."""

    def __init__(self) -> None:
        self.said: list[str] = []

    def _note(self, *words: object) -> bytes:
        self.said.append(" ".join(map(str, words)))
        return b""

    def begin(self) -> bytes:
        return self._note("begin")

    def reasoning(self, text: str) -> bytes:
        return self._note("think", text)

    def text(self, text: str) -> bytes:
        return self._note("text", text)

    def call(self, piece: ToolCallPiece) -> bytes:
        return self._note("call", piece.index, piece.id, piece.name, piece.arguments)

    def end(self, finish: str, stop: str | None, usage: ChatUsage) -> bytes:
        return self._note("end", finish, usage)

    def fail(self, status: int, error: JsonObject) -> bytes:
        return self._note("fail", error["message"])
