"""What the OpenAPI document says of the admin API: made from its pages and the models of their bodies."""

import re
from typing import Any

from gateway.api.admin.bodies import MODELS
from gateway.api.admin.resources.resource import Json
from gateway.api.admin.routes import AdminMethod, AdminPage

_SEGMENT = r"^[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*$"


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
    model = method.body or MODELS.get(method.name)
    schema: Json = {"type": "object"} if model is None else plain_schema(model.model_json_schema())
    if name == "GET" and model is not None:
        required = schema.get("required", ())
        described["parameters"] = [
            {"name": each, "in": "query", "required": each in required, "schema": _without_null(value)}
            for each, value in schema["properties"].items()
        ]
    elif method.query:
        described["parameters"] = [
            {"name": each, "in": "query", "required": False, "schema": dict(value)}
            for each, value in method.query.items()
        ]
    elif name in ("POST", "PUT", "PATCH") or model is not None:
        described["requestBody"] = {"content": {"application/json": {"schema": schema}}}
    return described


def plain_schema(schema: Json) -> Json:
    """A schema of pydantic's with what it refers to in its place, without titles and defaults of null."""
    definitions = schema.get("$defs", {})

    def plain(value: Any) -> Any:
        if isinstance(value, list):
            return [plain(each) for each in value]
        if not isinstance(value, dict):
            return value
        if "$ref" in value:
            value = definitions[value["$ref"].rpartition("/")[2]] | value
        found = {}
        for name, part in value.items():
            if name == "properties":
                found[name] = {member: plain(each) for member, each in part.items()}
            elif name not in ("$defs", "$ref", "title", "description") and (name, part) != ("default", None):
                found[name] = plain(part)
        return found

    whole: Json = plain(schema)
    return whole


def _without_null(schema: Json) -> Json:
    """A parameter of a query is left out, and never null."""
    value: Json = schema["anyOf"][0] if "anyOf" in schema else schema
    return value
