"""JSON schemas as answers are held to them: objects have the properties that are named, and no others. Pure.

By its definition a schema allows any further properties unless it says otherwise. Few schemas of tools say
so, though hardly any tool takes what it has not named; models fill the place with inventions, and small ones
find no end of them. Other engines' grammars decide it in the same way.
"""

from collections.abc import Mapping
from typing import Any

_OF_NAMES = ("properties", "patternProperties", "$defs", "definitions")
_OF_VALUES = (
    "items",
    "prefixItems",
    "additionalItems",
    "contains",
    "additionalProperties",
    "unevaluatedItems",
)
_CHOICES = ("anyOf", "oneOf", "allOf")
_COMPOSING = (*_CHOICES, "$ref", "$dynamicRef", "if", "not", "dependentSchemas")
_PLACES = ("#/$defs/", "#/definitions/")

_DEPTH = 64
"""Deeper schemas are left as they are."""
_PASSES = 8


def closed(schema: Any) -> Any:
    """``schema`` with ``additionalProperties`` false where properties are named and nothing else is said.

    Objects that several schemas describe together stay as they are, as each describes but a part: members of
    ``allOf``, and alternatives beside properties, also by reference.
    """
    described = _Described()
    for _ in range(_PASSES):
        known = len(described.shared)
        found = described.close(schema, "#" not in described.shared, 0)
        if described.foreign:
            return schema
        if len(described.shared) == known:
            return found
    return schema


class _Described:
    """Closes a schema; finds out by it which definitions describe only a part of an object."""

    def __init__(self) -> None:
        self.shared: set[str] = set()
        """References to them."""
        self.foreign = False
        """There are references to something else than definitions."""

    def close(self, schema: Any, alone: bool, depth: int) -> Any:
        """``alone``: nothing else describes the same object."""
        if not isinstance(schema, Mapping) or depth > _DEPTH:
            return schema
        found = dict(schema)
        self._note_reference(schema, alone)
        for word in _OF_NAMES:
            if isinstance(named := schema.get(word), Mapping):
                found[word] = {
                    name: self.close(each, f"#/{word}/{name}" not in self.shared, depth + 1)
                    for name, each in named.items()
                }
        for word in (*_OF_VALUES, *_CHOICES):
            if word in schema:
                apart = word in _OF_VALUES or (alone and self._apart(schema, word))
                found[word] = self._close_each(schema[word], apart, depth + 1)
        if alone and _names_all(schema):
            found["additionalProperties"] = False
        return found

    def _close_each(self, schemas: Any, alone: bool, depth: int) -> Any:
        """One schema, or a list of them."""
        if isinstance(schemas, list):
            return [self.close(each, alone, depth) for each in schemas]
        return self.close(schemas, alone, depth)

    def _note_reference(self, schema: Mapping[str, Any], alone: bool) -> None:
        if "$dynamicRef" in schema:
            self.foreign = True
        reference = schema.get("$ref")
        if reference is None:
            return
        if reference != "#" and not str(reference).startswith(_PLACES):
            self.foreign = True
        if not (alone and self._apart(schema, "$ref")):
            self.shared.add(str(reference))

    def _apart(self, schema: Mapping[str, Any], word: str) -> bool:
        """Whether each schema in this member describes an object by itself."""
        if word == "allOf" and isinstance(schema[word], list) and len(schema[word]) > 1:
            return False
        return not any(other in schema for other in ("properties", *_COMPOSING) if other != word)


def _names_all(schema: Mapping[str, Any]) -> bool:
    """Whether an object can be of the named properties only, and nothing is said of others."""
    properties = schema.get("properties")
    if not isinstance(properties, Mapping) or any(word in schema for word in _COMPOSING):
        return False
    if "additionalProperties" in schema or "unevaluatedProperties" in schema:
        return False
    required, least = schema.get("required", ()), schema.get("minProperties", 0)
    known = isinstance(required, list | tuple) and all(
        isinstance(name, str) and name in properties for name in required
    )
    return known and isinstance(least, int) and least <= len(properties)
