"""The gateway's own OpenAPI 3.1 document, served at ``/openapi.json``.

Made from the table of the surface. It says which paths there are and how they answer, and nothing of this
gateway: no model, no agent, no setting, no version of the program. So it needs no key.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from gateway.domain.surface import (
    CHAT,
    ENDPOINTS,
    ENGINES,
    MODELS,
    OLLAMA_MODELS,
    Dialect,
    SurfaceEndpoint,
)
from shared.protocol.limits import MODEL_NAME_CHARS

Json = dict[str, Any]

_MODEL = r"^[A-Za-z0-9][A-Za-z0-9._:@-]*(/[A-Za-z0-9][A-Za-z0-9._:@-]*)*$"
"""What models are called; others are taken, too."""
_SEGMENT = r"^[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*$"

_BELOW = {
    "/v1/audio/": ("speech", "transcriptions", "translations"),
    "/v1/images/": ("generations", "edits", "variations"),
}
"""Known paths below those that stand for everything below them."""

_FORMS = frozenset(("transcriptions", "translations", "edits", "variations"))

_SUMMARIES = {
    "chat": "Answer a chat (OpenAI)",
    "completions": "Complete a text (OpenAI)",
    "responses": "Answer as OpenAI's Responses API does",
    "embeddings": "Vectors for texts (OpenAI)",
    "rerank": "Order documents by how well they answer a query",
    "score": "Say how alike texts are (vLLM)",
    "classify": "Say to which class a text belongs (vLLM)",
    "pooling": "What a pooling model computes of a text (vLLM)",
    "tokenize": "Between text and tokens ({})",
    "messages": "Answer a chat (Anthropic: {})",
    "audio": "Between speech and text ({})",
    "images": "Make or change images ({})",
    "ollama": "Ollama's own {}",
}
"""By route, what its paths do; the braces are for the path's name."""

_ERRORS = {
    "400": "The request cannot be understood, or could be understood in two ways.",
    "401": "No key, or none that is known here.",
    "403": "The key may not do this.",
    "404": "There is nothing here, or no such model.",
    "405": "Another method is wanted.",
    "408": "The request came too slowly.",
    "413": "The body is too long.",
    "414": "The path is too long.",
    "415": "The body is compressed.",
    "429": "A limit is reached or the queue is full; Retry-After says when to come again.",
    "431": "The header fields are too many or too long.",
    "500": "The gateway failed.",
    "502": "The engine failed.",
    "503": "Nothing serves the model now, or the gateway is full or stopping.",
    "504": "It took too long.",
}
_OPEN_ERRORS = ("400", "403", "405", "408", "431", "503")
"""What paths without a key may answer."""


def document(
    admin: Mapping[str, Mapping[str, str]] | None = None,
    queries: Mapping[str, Sequence[str]] | None = None,
) -> Json:
    """The whole document, as JSON values. ``admin`` has the pages under ``/admin``: what each method does;
    ``queries`` what their GET takes in the query."""
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Trunkline",
            "version": "1",
            "summary": "One endpoint in front of every GPU you own.",
            "description": "Paths under /v1 follow OpenAI's and Anthropic's interfaces, those under /api "
            "Ollama's: bodies and answers are the engines' own, apart from errors. A path that no engine of "
            "a model has answers 404 route_not_supported.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": "/"}],
        "security": [{"bearer": []}, {"apiKey": []}],
        "paths": _paths()
        | {
            path: _page(path, methods, (queries or {}).get(path, ()))
            for path, methods in (admin or {}).items()
        },
        "components": _components(),
    }


def _paths() -> Json:
    paths: Json = {}
    for endpoint in ENDPOINTS:
        if endpoint.path == ENGINES:
            paths["/engines/{model}/{path}"] = _engine_paths()
        elif endpoint.path.endswith("/"):
            for name in _BELOW[endpoint.path]:
                paths[endpoint.path + name] = {"post": _operation(endpoint, name)}
        else:
            paths[endpoint.path] = {"post": _operation(endpoint, _name(endpoint.path))}
    return paths | _own_paths()


def _name(path: str) -> str:
    """Of a path below /v1 its last word; of others all, so that each is named once."""
    return path.rpartition("/")[2] if path.startswith("/v1/") else path[1:].replace("/", "-")


def _operation(endpoint: SurfaceEndpoint, name: str) -> Json:
    return {
        "operationId": _operation_id(endpoint, name),
        "summary": _SUMMARIES.get(endpoint.route, "{}").format(name),
        "requestBody": {
            "required": True,
            "content": _form() if name in _FORMS else _json(_members(endpoint)),
        },
        "responses": {"200": _answer(), **_refusals(_ERRORS, endpoint.dialect)},
    }


def _operation_id(endpoint: SurfaceEndpoint, name: str) -> str:
    below_v1 = endpoint.path.startswith("/v1/")
    return (f"{endpoint.route}-{name}" if below_v1 else f"plain-{name}").replace("_", "-")


def _json(schema: Json) -> Json:
    return {"application/json": {"schema": schema}}


def _members(endpoint: SurfaceEndpoint) -> Json:
    """What the gateway reads of a body; engines read more."""
    properties: Json = {
        "model": {"$ref": "#/components/schemas/ModelName"},
        "stream": {"type": ["boolean", "null"]},
    }
    if endpoint == CHAT:
        properties["messages"] = {"type": "array", "items": {"type": "object"}}
    return {"type": "object", "required": ["model"], "properties": properties, "additionalProperties": True}


def _form() -> Json:
    properties = {"model": {"$ref": "#/components/schemas/ModelName"}, "file": {"type": "string"}}
    schema = {"type": "object", "required": ["model"], "properties": properties, "additionalProperties": True}
    return {"multipart/form-data": {"schema": schema}}


def _answer() -> Json:
    """An engine's."""
    return {
        "description": "The engine's answer, or a stream of events, or of JSON lines.",
        "content": {
            "application/json": {},
            "text/event-stream": {},
            "application/x-ndjson": {},
            "*/*": {},
        },
    }


_ERROR_SCHEMAS = {
    Dialect.OPENAI: "Error",
    Dialect.ANTHROPIC: "AnthropicError",
    Dialect.OLLAMA: "OllamaError",
}


def _refusals(statuses: Mapping[str, str], dialect: Dialect = Dialect.OPENAI) -> Json:
    name = _ERROR_SCHEMAS[dialect]
    content = _json({"$ref": f"#/components/schemas/{name}"})
    return {status: {"description": said, "content": content} for status, said in statuses.items()}


def _engine_paths() -> Json:
    parameters = [
        {
            "name": "model",
            "in": "path",
            "required": True,
            "schema": {"$ref": "#/components/schemas/ModelName"},
        },
        {
            "name": "path",
            "in": "path",
            "required": True,
            "description": "The engine's own path: any number of segments, with slashes between.",
            "schema": {"type": "string", "pattern": _SEGMENT},
        },
    ]
    common = {"responses": {"default": {"description": "The engine's answer, or an error of the gateway."}}}
    methods = ("get", "post", "put", "patch", "delete")
    return {
        "parameters": parameters,
        **{
            each: {"operationId": f"engine-{each}", "summary": "An engine's own path", **common}
            for each in methods
        },
    }


def _own_paths() -> Json:
    """What the gateway answers itself."""
    keyed = {
        status: _ERRORS[status] for status in ("400", "401", "403", "405", "408", "429", "431", "500", "503")
    }
    model = {"$ref": "#/components/schemas/Model"}
    models = {
        "type": "object",
        "required": ["object", "data"],
        "properties": {"data": {"type": "array", "items": model}},
    }
    found = _refusals(keyed | {"404": _ERRORS["404"], "414": _ERRORS["414"]})
    id_parameter = {
        "name": "id",
        "in": "path",
        "required": True,
        "schema": {"$ref": "#/components/schemas/ModelName"},
    }
    return {
        MODELS: {"get": _get("models", "The models served here", models, _refusals(keyed))},
        MODELS + "/{id}": {"parameters": [id_parameter], "get": _get("model", "One model", model, found)},
        "/models": {"get": _get("models-short", "The models served here", models, _refusals(keyed))},
        "/models/{id}": {
            "parameters": [id_parameter],
            "get": _get("model-short", "One model", model, found),
        },
        OLLAMA_MODELS: {
            "get": _get(
                "ollama-models",
                "The models served here, as Ollama lists them",
                _object({"models": {"type": "array", "items": {"type": "object"}}}),
                _refusals(keyed, Dialect.OLLAMA),
            )
        },
        "/version": {"get": _get("version", "Which version runs here", {"type": "object"}, _refusals(keyed))},
        "/": {"get": _open("front", "What this is, and where to go")},
        "/docs": {"get": _page_of_paths()},
        "/healthz": {"get": _open("health", "The process answers")},
        "/health": {"get": _open("health-short", "The process answers")},
        "/readyz": {"get": _open("ready", "Requests are taken")},
        "/openapi.json": {"get": _open("openapi", "This document")},
        "/metrics": {
            "get": {
                "operationId": "metrics",
                "summary": "Figures for Prometheus",
                "responses": {
                    "200": {"description": "Figures", "content": {"text/plain": {}}},
                    **_refusals(keyed),
                },
            }
        },
    }


def _page_of_paths() -> Json:
    page = _open("docs", "These paths for people to read")
    page["responses"]["200"] = {"description": "A page", "content": {"text/html": {}}}
    return page


def _page(path: str, methods: Mapping[str, str], query: Sequence[str]) -> Json:
    """One of ``/admin``."""
    parameters = [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string", "pattern": _SEGMENT}}
        for name in re.findall(r"{(\w+)}", path)
    ]
    answers = {"200": {"description": "Done", "content": _json({"type": "object"})}}
    operations: Json = {}
    for method, summary in methods.items():
        words = re.findall(r"[a-z]+", f"{method.lower()} {path}")
        operations[method.lower()] = {
            "operationId": "-".join(words),
            "summary": summary,
            "responses": answers | _refusals(_ERRORS | {"409": "The name is taken."}),
        }
        if method in ("POST", "PUT", "PATCH"):
            operations[method.lower()]["requestBody"] = {"content": _json({"type": "object"})}
        if method == "GET" and query:
            operations["get"]["parameters"] = [
                {"name": name, "in": "query", "required": False, "schema": {"type": "string"}}
                for name in query
            ]
    return {"parameters": parameters, **operations}


def _get(name: str, summary: str, schema: Json, refusals: Json) -> Json:
    answer = {"description": summary, "content": _json(schema)}
    return {"operationId": name, "summary": summary, "responses": {"200": answer, **refusals}}


def _open(name: str, summary: str) -> Json:
    refusals = _refusals({status: _ERRORS[status] for status in _OPEN_ERRORS})
    if name == "ready":
        refusals["503"] = {"description": "Not ready", "content": _json({"type": "object"})}
    return _get(name, summary, {"type": "object"}, refusals) | {"security": []}


def _components() -> Json:
    text, maybe_text = {"type": "string"}, {"type": ["string", "null"]}
    detail = {"message": text, "type": text, "param": maybe_text, "code": maybe_text}
    anthropic_detail = {"type": text, "message": text}
    return {
        "securitySchemes": {
            "bearer": {"type": "http", "scheme": "bearer"},
            "apiKey": {"type": "apiKey", "in": "header", "name": "x-api-key"},
        },
        "schemas": {
            "ModelName": {"type": "string", "minLength": 1, "maxLength": MODEL_NAME_CHARS, "pattern": _MODEL},
            "Model": _object({"id": text, "object": {"const": "model"}, "created": {"type": "integer"}}),
            "Error": _object({"error": _object(detail)}),
            "OllamaError": _object({"error": text}),
            "AnthropicError": _object(
                {"type": {"const": "error"}, "error": _object(anthropic_detail), "request_id": text}
            ),
        },
    }


def _object(properties: Json) -> Json:
    """All of them are there."""
    return {"type": "object", "required": list(properties), "properties": properties}
