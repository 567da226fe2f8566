"""Which objects of a schema get no further properties."""

from typing import Any

import pytest

from agent.engines.torch.schemas import closed

NAMED: dict[str, Any] = {"type": "object", "properties": {"a": {"type": "integer"}}}
CLOSED = NAMED | {"additionalProperties": False}
REFERENCE = {"$ref": "#/$defs/named"}
DEFINED = {"$defs": {"named": NAMED}}
CLOSED_DEFINED = {"$defs": {"named": CLOSED}}


@pytest.mark.parametrize(
    ("schema", "expected"),
    [
        (NAMED, CLOSED),
        ({"type": "array", "items": NAMED}, {"type": "array", "items": CLOSED}),
        ({"prefixItems": [NAMED, True]}, {"prefixItems": [CLOSED, True]}),
        ({"properties": {"b": NAMED}}, {"properties": {"b": CLOSED}, "additionalProperties": False}),
        ({"properties": {"type": NAMED}}, {"properties": {"type": CLOSED}, "additionalProperties": False}),
        ({"anyOf": [NAMED, {"type": "null"}]}, {"anyOf": [CLOSED, {"type": "null"}]}),
        ({"allOf": [NAMED]}, {"allOf": [CLOSED]}),
        (REFERENCE | DEFINED, REFERENCE | CLOSED_DEFINED),
        ({"items": REFERENCE} | DEFINED, {"items": REFERENCE} | CLOSED_DEFINED),
        (
            {"allOf": [REFERENCE], "default": {}} | DEFINED,
            {"allOf": [REFERENCE], "default": {}} | CLOSED_DEFINED,
        ),
        (
            {"type": "object", "additionalProperties": NAMED},
            {"type": "object", "additionalProperties": CLOSED},
        ),
        (NAMED | {"required": ["a"], "minProperties": 1}, CLOSED | {"required": ["a"], "minProperties": 1}),
    ],
)
def test_an_object_has_the_properties_that_are_named(schema: Any, expected: Any) -> None:
    assert closed(schema) == expected


OTHER = {"properties": {"b": True}}


@pytest.mark.parametrize(
    "schema",
    [
        True,
        {},
        {"type": "object"},
        NAMED | {"additionalProperties": True},
        NAMED | {"unevaluatedProperties": False},
        NAMED | {"required": ["b"]},
        NAMED | {"minProperties": 2},
        {"enum": [{"properties": {}}]},
        {"not": NAMED},
        {"if": NAMED, "then": NAMED},
        {"allOf": [NAMED, OTHER]},
        NAMED | {"anyOf": [OTHER, {"required": ["a"]}]},
        {"anyOf": [NAMED], "oneOf": [OTHER]},
        {"allOf": [REFERENCE, OTHER]} | DEFINED,
        {"allOf": [{"$ref": "#/$defs/other"}, OTHER], "$defs": {"other": REFERENCE} | DEFINED["$defs"]},
        OTHER | REFERENCE | DEFINED,
        NAMED | {"allOf": [{"$ref": "#"}, OTHER]},
        {"properties": {"a": {"$ref": "https://example.com/schema"}}},
        {"properties": {"a": {"$ref": "#/properties/b"}, "b": NAMED}},
        {"properties": {"a": {"$dynamicRef": "#node"}}},
        NAMED | {"required": [["a"]]},
        NAMED | {"required": {"a": True}},
    ],
)
def test_what_others_describe_too_or_what_says_otherwise_stays_open(schema: Any) -> None:
    assert closed(schema) == schema


def test_what_a_part_of_an_object_contains_is_closed_all_the_same() -> None:
    part = {"properties": {"b": NAMED}}
    assert closed({"allOf": [part, NAMED]}) == {"allOf": [{"properties": {"b": CLOSED}}, NAMED]}


def test_a_schema_of_any_depth_is_taken() -> None:
    schema: Any = NAMED
    for _ in range(5000):
        schema = {"items": schema}
    found = closed(schema)
    for _ in range(5000):
        found = found["items"]
    assert found == NAMED


def test_a_long_chain_of_references_is_taken() -> None:
    names = {f"d{place}": {"$ref": f"#/$defs/d{place + 1}"} for place in range(2000)}
    schema = {"allOf": [{"$ref": "#/$defs/d0"}, NAMED], "$defs": names | {"d2000": NAMED}}
    assert closed(schema) == schema
