"""What is said of bodies is what is taken of them."""

from typing import Annotated, Any

import pytest
from annotated_types import Interval

from gateway.api.admin.bodies import MODELS
from gateway.api.admin.description import object_schema, type_schema
from gateway.api.admin.resources.table import OPERATIONS


def plain(value: Any, defs: dict[str, Any]) -> Any:
    """A schema of pydantic's with what it refers to in its place, without titles and defaults of null."""
    if isinstance(value, list):
        return [plain(each, defs) for each in value]
    if not isinstance(value, dict):
        return value
    if "$ref" in value:
        return plain(defs[value["$ref"].rpartition("/")[2]], defs) | {
            name: each for name, each in value.items() if name == "default"
        }
    found = {}
    for name, each in value.items():
        if name == "properties":
            found[name] = {member: plain(schema, defs) for member, schema in each.items()}
        elif name not in ("$defs", "title", "description") and (name, each) != ("default", None):
            found[name] = plain(each, defs)
    return found


@pytest.mark.parametrize("name", MODELS)
def test_a_body_is_described_as_it_is_checked(name: str) -> None:
    operation = OPERATIONS[name]
    checked = MODELS[name].model_json_schema()
    described = object_schema(operation.fields, open_=operation.takes_unknown)
    assert plain(checked, checked.get("$defs", {})) == described


def test_a_bound_without_a_form_in_a_schema_is_told() -> None:
    with pytest.raises(AssertionError, match="has no form"):
        type_schema(Annotated[int, Interval(ge=1)])
