"""Schemas say what is taken, as clients' tools read it."""

from enum import StrEnum
from typing import Annotated

import pytest
from annotated_types import Ge, MaxLen
from pydantic import BaseModel, ConfigDict

from gateway.api.admin.bodies import MODELS
from gateway.api.admin.description import plain_schema
from gateway.api.admin.resources.resource import REQUIRED
from gateway.api.admin.resources.table import OPERATIONS


class Colour(StrEnum):
    """Not told."""

    RED = "red"


class Inner(BaseModel):
    model_config = ConfigDict(extra="forbid")
    title: str


class Outer(BaseModel):
    inner: Inner | None = None
    colour: Colour = Colour.RED
    names: Annotated[list[str], MaxLen(2)] | None = None
    count: Annotated[int, Ge(1)]


def test_a_schema_holds_what_it_refers_to_and_no_titles() -> None:
    inner = {
        "type": "object",
        "properties": {"title": {"type": "string"}},
        "required": ["title"],
        "additionalProperties": False,
    }
    names = {"type": "array", "items": {"type": "string"}, "maxItems": 2}
    assert plain_schema(Outer.model_json_schema()) == {
        "type": "object",
        "properties": {
            "inner": {"anyOf": [inner, {"type": "null"}]},
            "colour": {"type": "string", "enum": ["red"], "default": "red"},
            "names": {"anyOf": [names, {"type": "null"}]},
            "count": {"type": "integer", "minimum": 1},
        },
        "required": ["count"],
    }


@pytest.mark.parametrize("name", MODELS)
def test_a_body_is_described_with_its_members_and_those_it_must_have(name: str) -> None:
    operation, described = OPERATIONS[name], plain_schema(MODELS[name].model_json_schema())
    assert list(described["properties"]) == [field.name for field in operation.fields]
    required = [field.name for field in operation.fields if field.default is REQUIRED]
    assert described.get("required", []) == required
    assert described.get("additionalProperties", True) is operation.takes_unknown
    assert "$ref" not in str(described)
