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


def prompt_of(members: Mapping[str, Any]) -> bytes:
    """Bytes that are equal for two requests exactly as far as what their engines read is; empty for none.

    Members that are no part of the prompt (the temperature, who asks) do not count, nor does their order.
    """
    parts = [orjson.dumps(members[name]) for name in (*_READ_FIRST, *_READ) if members.get(name)]
    return b"\n".join(parts)
