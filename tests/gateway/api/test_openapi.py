"""The document at ``/openapi.json`` says what the routes, the methods and the errors of the gateway are."""

import re
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from starlette.routing import Route

from gateway.api.admin.bodies import MODELS
from gateway.api.admin.description import describe_page
from gateway.api.admin.routes import AdminPage
from gateway.api.openai.handlers import KeyedPage, Proxied
from gateway.api.openapi import document
from gateway.domain import errors
from gateway.domain.inference_paths import inference_path, read_inference_path
from gateway.domain.serving_paths import read_predictions_path, read_served_path
from gateway.domain.surface import (
    ENDPOINTS,
    ENGINES,
    INFERENCE,
    TENSORFLOW,
    TORCHSERVE,
    TUNNEL,
    SurfaceEndpoint,
)
from gateway.domain.workflow_paths import WORKFLOWS
from shared.protocol.limits import MODEL_NAME_CHARS
from shared.protocol.routes import FAMILIES, PATHS, Dialect
from tests.gateway.api.admin.house import House

UNDOCUMENTED = {421, 426, 499}
"""Statuses for other gateway processes and for agents alone, and of the log alone."""
SCHEMAS = {Dialect.OPENAI: "Error", Dialect.ANTHROPIC: "AnthropicError", Dialect.OLLAMA: "OllamaError"}
SCHEMAS[Dialect.KSERVE] = SCHEMAS[Dialect.TENSORFLOW] = SCHEMAS[Dialect.OLLAMA]  # they are one
SCHEMAS |= {Dialect.TGI: "TgiError", Dialect.TORCHSERVE: "TorchServeError"}
NOT_IN_DOCUMENT = {"HEAD", "OPTIONS"}
"""Methods that engines' own paths take besides."""


@pytest.fixture(scope="module")
def routes(tmp_path_factory: pytest.TempPathFactory) -> list[Route]:
    """Every route of the gateway but the tunnel's."""
    house = House(tmp_path_factory.mktemp("state"))
    found = [each for each in house.router.routes if isinstance(each, Route) and each.path != TUNNEL]
    assert len(found) == len(house.router.routes) - 1
    return found


def _endpoint_of(route: Route) -> object:
    """What answers. Starlette's annotation knows functions only."""
    return route.endpoint


def _surface_of(route: Route) -> SurfaceEndpoint | None:
    """The row of the surface's table that it serves."""
    page = _endpoint_of(route)
    return page.endpoint if isinstance(page, Proxied) and page.endpoint in ENDPOINTS else None


def pages(routes: Sequence[Route]) -> dict[str, AdminPage]:
    return {each.path_format: page for each in routes if isinstance(page := _endpoint_of(each), AdminPage)}


def described(routes: Sequence[Route]) -> dict[str, Any]:
    paths: dict[str, Any] = whole_document(routes)["paths"]
    return paths


def whole_document(routes: Sequence[Route]) -> dict[str, Any]:
    return document({path: describe_page(path, page) for path, page in pages(routes).items()})


def operations(paths: dict[str, Any]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Path, method and operation."""
    for path, item in paths.items():
        for method, operation in item.items():
            if method != "parameters":
                yield path, method.upper(), operation


def paths_of(route: Route) -> set[str]:
    """As the document writes them."""
    if route.path.startswith(ENGINES):
        return {"/engines/{model}/{path}"}
    if route.path.startswith(WORKFLOWS):
        return {WORKFLOWS + "{model}"}
    family = route.path.partition("{tail:path}")[0]
    if family in FAMILIES:
        return {path for path in PATHS if path.startswith(family)}
    return {route.path_format}


def methods_of(route: Route) -> set[str]:
    page, endpoint = _endpoint_of(route), _surface_of(route)
    if isinstance(page, AdminPage | KeyedPage):
        return set(page.methods)
    return {"GET"} if endpoint is None else set(endpoint.methods) - NOT_IN_DOCUMENT


def of_inference() -> Iterator[tuple[str, str]]:
    """The paths that engines answer of KServe's protocol, as the document writes them, and their methods."""
    for version in ("", "v"):
        for action in ("", "infer", "generate", "generate_stream", "config", "stats"):
            read = read_inference_path(inference_path("m", version, action))
            assert read is not None
            written = "/v2/models/{model}" + version.replace("v", "/versions/{version}")
            yield f"{written}/{action}".removesuffix("/"), read.methods[0]


def of_other_servers() -> Iterator[tuple[str, str]]:
    """The same of TensorFlow Serving's paths and of TorchServe's."""
    for version in ("", "/versions/{version}", "/labels/{label}"):
        for end in (":predict", ":classify", ":regress", ":explain", "/metadata", ""):
            written = re.sub(r"{\w+}", "1", version + end)
            read = read_served_path(f"/v1/models/m{written}")
            if read is not None:
                yield f"/v1/models/{{model}}{version}{end}", read.methods[0]
    for path in ("/predictions/{model}", "/explanations/{model}"):
        for written in (path, path + "/{version}"):
            read = read_predictions_path(re.sub(r"{\w+}", "1", written))
            assert read is not None
            yield from ((written, method) for method in read.methods)


def test_every_route_has_its_entry_and_every_entry_its_route(routes: list[Route]) -> None:
    others = [each for each in routes if _surface_of(each) not in (INFERENCE, TENSORFLOW, *TORCHSERVE)]
    of_routes = {(p, m) for each in others for p in paths_of(each) for m in methods_of(each)}
    of_routes |= {*of_inference(), *of_other_servers()}
    assert {(path, method) for path, method, _ in operations(described(routes))} == of_routes


def test_without_the_admin_api_none_of_its_paths_is_described() -> None:
    assert not [path for path in document()["paths"] if path.startswith("/admin")]


def test_each_path_has_the_parameters_it_names(routes: list[Route]) -> None:
    for path, item in described(routes).items():
        named = [(each["name"], each["in"]) for each in item.get("parameters", ())]
        assert named == [(name, "path") for name in re.findall(r"{(\w+)}", path)], path


def test_each_admin_page_is_described_with_its_acts_and_its_query(routes: list[Route]) -> None:
    paths = described(routes)
    for path, page in pages(routes).items():
        for name, method in page.methods.items():
            operation = paths[path][name.lower()]
            assert operation["summary"] == method.summary
            model = method.body or MODELS.get(method.name)
            fields = tuple(method.query) if model is None else tuple(model.model_fields)
            query = tuple(each["name"] for each in operation.get("parameters", ()))
            assert query == (fields if name == "GET" else ()), (path, name)
            schema = operation.get("requestBody", {"content": {"application/json": {"schema": {}}}})
            members = schema["content"]["application/json"]["schema"].get("properties", {})
            assert tuple(members) == (() if name == "GET" else fields), (path, name)
            assert ("requestBody" in operation) == (name in ("POST", "PUT", "PATCH") or bool(members))


def test_the_statuses_are_those_of_the_table_of_errors(routes: list[Route]) -> None:
    def below(kind: type[errors.RequestError]) -> Iterator[type[errors.RequestError]]:
        for each in kind.__subclasses__():
            if each.__module__.startswith(("gateway.", "shared.")):
                yield each
                yield from below(each)

    known = {str(each.status) for each in below(errors.RequestError)} - {str(each) for each in UNDOCUMENTED}
    named = {status for *_, each in operations(described(routes)) for status in each["responses"]}
    assert named - {"200", "202", "206", "304", "308", "default"} == known


def test_each_refusal_is_described_in_its_dialect(routes: list[Route]) -> None:
    paths = described(routes)
    for route in routes:
        endpoint = _surface_of(route)
        if endpoint is None or endpoint.names_model:
            continue
        kind = SCHEMAS[endpoint.dialect]
        for path in paths_of(route):
            for status, answer in paths[path][endpoint.methods[-1].lower()]["responses"].items():
                if status not in ("200", "202", "206"):
                    schema = answer["content"]["application/json"]["schema"]
                    assert schema == {"$ref": f"#/components/schemas/{kind}"}, (path, status)


def test_each_operation_has_a_name_of_its_own_and_every_reference_leads_somewhere(
    routes: list[Route],
) -> None:
    whole = whole_document(routes)
    names = [operation["operationId"] for *_, operation in operations(whole["paths"])]
    assert len(names) == len(set(names))
    references = set(re.findall(r"'\$ref': '#/([^']+)'", str(whole)))
    assert references == {f"components/schemas/{name}" for name in whole["components"]["schemas"]}


def test_a_models_name_is_as_long_as_the_protocol_takes_it() -> None:
    assert document()["components"]["schemas"]["ModelName"]["maxLength"] == MODEL_NAME_CHARS
