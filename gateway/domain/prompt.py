"""What of a request's body an engine reads as its prompt, in the order engines read it. Pure."""

from collections.abc import Mapping
from typing import Any

import orjson

_READ_FIRST = ("tools", "system", "instructions")
"""Chat templates put them before everything else."""
_READ = (
    "template",
    "context",
    "messages",
    "prompt",
    "input",
    "inputs",
    "query",
    "documents",
    "queries",
    "text_1",
    "text_2",
    "data_1",
    "data_2",
    "suffix",
    "content",
    "items",
)


PROMPT_MEMBERS = frozenset((*_READ_FIRST, *_READ))


class NestedTooDeep(Exception):
    """A member is nested deeper than it can be written (254 levels)."""

    def __init__(self, member: str) -> None:
        super().__init__(member)
        self.member = member


def prompt_of(members: Mapping[str, Any]) -> bytes:
    """Bytes that are equal for two requests exactly as far as what their engines read is; empty for none.

    Members that are no part of the prompt (the temperature, who asks) do not count, nor does their order.
    Raises :class:`NestedTooDeep`.
    """
    return b"\n".join([_written(name, members[name]) for name in (*_READ_FIRST, *_READ) if members.get(name)])


def _written(name: str, value: Any) -> bytes:
    try:
        return orjson.dumps(value)
    except orjson.JSONEncodeError:
        raise NestedTooDeep(name) from None
