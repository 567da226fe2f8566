"""What engines say that their models can do: ``tools``, ``vision``, … in their own words. Pure.

Three shapes are known: a list of words (Ollama's ``/api/show``, llama.cpp's ``/v1/models``), an object of
word → true (LM Studio's ``/api/v1/models``) and an object of word → ``{"supported": true}`` (Anthropic's
``/v1/models``).
"""

from typing import Any

from shared.protocol.messages import usable_capabilities

LISTED = 2048
"""How many entries of a list are looked at."""

_LISTS = ("data", "models")
_NAMES = ("id", "key", "model", "name")


def capabilities_of(description: Any) -> tuple[str, ...]:
    """Those in an object with the member ``capabilities``; empty where it says none."""
    said = description.get("capabilities") if isinstance(description, dict) else None
    if isinstance(said, dict):
        said = [word for word, value in said.items() if value is True or _is_supported(value)]
    return usable_capabilities(said) if isinstance(said, list) else ()


def capabilities_in(document: Any) -> dict[str, tuple[str, ...]]:
    """Those in a list of models, by each name that an entry has; models that say none are left out."""
    found: dict[str, tuple[str, ...]] = {}
    for entries in [document.get(name) for name in _LISTS] if isinstance(document, dict) else ():
        for entry in entries[:LISTED] if isinstance(entries, list) else ():
            if said := capabilities_of(entry):
                names = [entry[name] for name in _NAMES if isinstance(entry.get(name), str)]
                found |= dict.fromkeys(names, said)
    return found


def _is_supported(value: Any) -> bool:
    return isinstance(value, dict) and value.get("supported") is True
