"""What the OpenAPI document says of the admin API: made from its pages and the fields of their operations."""

import re
from collections.abc import Sequence
from enum import StrEnum
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin

from annotated_types import Ge, Gt, Le, MaxLen, MinLen

from gateway.api.admin.resources.resource import REQUIRED, Field, Json
from gateway.api.admin.routes import AdminMethod, AdminPage

_SEGMENT = r"^[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*$"
_TYPES = {str: "string", int: "integer", float: "number", bool: "boolean", list: "array", dict: "object"}
_LENGTHS = {"string": "Length", "array": "Items", "object": "Properties"}


def describe_page(path: str, page: AdminPage) -> Json:
    """The item of the page at ``path`` among the paths of the document, which holds what its references to
    ``x-shared`` name."""
    names = re.findall(r"{(\w+)}", path)
    schema = {"type": "string", "pattern": _SEGMENT}
    parameters = [{"name": name, "in": "path", "required": True, "schema": schema} for name in names]
    methods = {name.lower(): _operation(path, name, method) for name, method in page.methods.items()}
    return {"parameters": parameters, **methods}


def _operation(path: str, name: str, method: AdminMethod) -> Json:
    described: Json = {
        "operationId": "-".join(re.findall(r"[a-z]+", f"{name.lower()} {path}")),
        "summary": method.summary,
        "responses": {"$ref": "#/x-shared/admin"},
    }
    if name == "GET" and method.fields:
        described["parameters"] = [
            {"name": each.name, "in": "query", "required": each.default is REQUIRED, "schema": _value(each)}
            for each in method.fields
        ]
    elif name in ("POST", "PUT", "PATCH") or method.fields:
        schema = (
            object_schema(method.fields, open_=method.takes_unknown) if method.fields else {"type": "object"}
        )
        described["requestBody"] = {"content": {"application/json": {"schema": schema}}}
    return described


def object_schema(fields: Sequence[Field], *, open_: bool = False) -> Json:
    """The JSON schema of an object with these members, and any others where it is ``open_``."""
    required = [each.name for each in fields if each.default is REQUIRED]
    return {
        "type": "object",
        "properties": {each.name: _member(each, open_) for each in fields},
        **({"required": required} if required else {}),
        **({} if open_ else {"additionalProperties": False}),
    }


def _member(field: Field, open_: bool) -> Json:
    if field.default is None:
        value = object_schema(field.type, open_=open_) if isinstance(field.type, tuple) else _value(field)
        return {"anyOf": [value, {"type": "null"}]}
    return _value(field)


def _value(field: Field) -> Json:
    """Of a field that is no object of fields, without null."""
    pattern = {} if field.pattern is None else {"pattern": field.pattern}
    default = {} if field.default in (None, REQUIRED) else {"default": field.default}
    return {**type_schema(field.type), **pattern, **default}


def type_schema(type_: Any) -> Json:
    """The JSON schema of a field's type: text, numbers, enumerations, and lists and tables of them."""
    if get_origin(type_) is Annotated:
        inner, *bounds = get_args(type_)
        schema = type_schema(inner)
        return schema | {name: value for bound in bounds for name, value in _bound(schema, bound).items()}
    if isinstance(type_, type) and issubclass(type_, StrEnum):
        return {"type": "string", "enum": [each.value for each in type_]}
    of, arguments = get_origin(type_) or type_, get_args(type_)
    assert of not in (Union, UnionType), "null is said by the default None"
    schema = {"type": _TYPES[of]}
    if of is list:
        schema["items"] = type_schema(arguments[0])
    if of is dict:
        schema["additionalProperties"] = type_schema(arguments[1])
    return schema


def _bound(schema: Json, bound: object) -> Json:
    match bound:
        case Ge(ge):
            return {"minimum": ge}
        case Gt(gt):
            return {"exclusiveMinimum": gt}
        case Le(le):
            return {"maximum": le}
        case MinLen(least):
            return {f"min{_LENGTHS[schema['type']]}": least}
        case MaxLen(most):
            return {f"max{_LENGTHS[schema['type']]}": most}
    raise AssertionError(f"{bound} has no form in a JSON schema")
