"""What the programs of this directory share. They run in environments of their own, without this project.

A program gets its facts as JSON in its first argument, and writes a line of JSON for each check.
"""

import asyncio
import json
import sys
from collections.abc import Callable, Mapping
from typing import Any

FACTS: Mapping[str, Any] = json.loads(sys.argv[1])
"""``url`` of the gateway, ``base_url`` of OpenAI's API there, ``key``, ``model``, ``embedder``, ``alias``: a
name of Anthropic's for the model, ``echoes``: whether it repeats what it is told."""

WORDS = "three plain words"
SYSTEM = "You are brief."
QUESTION = "What is the weather in Oslo?"


class Unasked(Exception):
    """The client has no way to ask for it here."""


def same(found: str, text: str) -> None:
    """``found`` is the answer to ``text``."""
    assert found.strip(), "the answer is empty"
    if FACTS["echoes"]:
        assert found == f"You said: {text}", f"another answer: {found[:200]!r}"


def is_weather(arguments: Any) -> None:
    """``arguments`` fit the schema of the weather."""
    found = json.loads(arguments) if isinstance(arguments, str) else arguments
    assert isinstance(found["city"], str), f"no city: {found}"
    assert isinstance(found["celsius"], int), f"no temperature: {found}"


WEATHER = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "celsius": {"type": "integer"}},
    "required": ["city", "celsius"],
    "additionalProperties": False,
}


def is_vector(found: Any) -> None:
    assert len(found) >= 2, f"no vector: {found}"
    assert all(isinstance(each, float) for each in found)


def run(**checks: Callable[[], Any]) -> None:
    """Runs each check, which may be asynchronous, and writes what became of it."""
    for name, check in checks.items():
        said: dict[str, Any] = {"check": name, "ok": True, "detail": ""}
        try:
            result = check()
            if asyncio.iscoroutine(result):
                asyncio.run(result)
        except Unasked as reason:
            said |= {"ok": None, "detail": str(reason)}
        except Exception as error:
            said |= {"ok": False, "detail": f"{type(error).__name__}: {error}"[:600]}
        sys.stdout.write(json.dumps(said) + "\n")
        sys.stdout.flush()
