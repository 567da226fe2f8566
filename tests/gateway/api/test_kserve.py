"""KServe's protocol at the gateway: what it answers by itself, and what goes to engines by the path."""

from typing import Any

import orjson
import pytest

from gateway.domain.errors import RouteNotSupported
from gateway.domain.request import Principal, Request
from gateway.domain.scopes import limited
from gateway.fleet.registry import ServedModel
from tests.gateway.api.support import FakeCatalog, FakeKeys, FakeResponse, Surface, json_response, whole_body

INFER = ("infer", "any")
SIZE = b"inference-header-content-length"


def served(name: str, *routes: str, ready: bool = True) -> ServedModel:
    return ServedModel(name, 1, "trunkline", ready, int(ready), routes or INFER, loadable=int(not ready))


def surface(**options: Any) -> Surface:
    models = (served("iris"), served("big", ready=False), served("gpt", "chat", "any"), served("own", "any"))
    return Surface(catalog=FakeCatalog(*models), **options)


async def test_the_server_says_what_it_is_to_holders_of_a_key() -> None:
    answer = orjson.loads((await surface().get("/v2")).content)
    assert (answer["name"], "binary_tensor_data" in answer["extensions"]) == ("trunkline", True)
    refused = await surface().get("/v2", key=False)
    assert (refused.status, list(orjson.loads(refused.content))) == (401, ["error"])
    assert isinstance(orjson.loads(refused.content)["error"], str)


async def test_health_is_open_to_everybody() -> None:
    house = surface()
    assert (await house.get("/v2/health/live", key=False)).content == b'{"live":true}'
    assert (await house.get("/v2/health/ready", key=False)).content == b'{"ready":true}'
    house.lifecycle.drain()
    stopping = await house.get("/v2/health/ready", key=False)
    assert (stopping.status, stopping.content) == (503, b'{"ready":false}')


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/v2/models/iris/ready", 200),
        ("/v2/models/iris/versions/1/ready", 200),
        ("/v2/models/big/ready", 400),
        ("/v2/models/none/ready", 404),
    ],
)
async def test_a_models_readiness_is_a_status(path: str, status: int) -> None:
    assert (await surface().get(path)).status == status


async def test_the_index_lists_what_takes_tensors_within_the_keys_scopes() -> None:
    found = orjson.loads((await surface().post("/v2/repository/index", b"")).content)
    assert [(each["name"], each["state"]) for each in found] == [
        ("iris", "READY"),
        ("big", "UNAVAILABLE"),
        ("own", "READY"),
    ]
    json_type = (b"content-type", b"application/json")
    ready = await surface().post("/v2/repository/index", b'{"ready":true}', json_type)
    assert [each["name"] for each in orjson.loads(ready.content)] == ["iris", "own"]
    keys = FakeKeys(Principal("k", "k", "t", scopes=limited(models=["own"])))
    scoped = await surface(keys=keys).post("/v2/repository/index", b"")
    assert [each["name"] for each in orjson.loads(scoped.content)] == ["own"]


async def test_inference_goes_to_the_model_of_its_path_with_every_byte_as_it_came() -> None:
    house = surface()
    got: list[bytes] = []

    async def serve(request: Request) -> FakeResponse:
        got.append(await whole_body(request))
        return json_response()

    house.dispatcher.serve = serve
    said = b'{"inputs":[{"name":"x","shape":[4],"datatype":"UINT8","parameters":{"binary_data_size":4}}]}'
    body = said + b"\x00\xff{}"
    call = await house.post("/v2/models/iris/versions/2/infer", body, (SIZE, str(len(said)).encode()))
    request = house.dispatcher.request
    assert (call.status, request.model, request.route, request.need) == (200, "iris", "infer", "infer")
    assert (request.method, request.path) == ("POST", "/v2/models/iris/versions/2/infer")
    assert got == [body]
    assert ("inference-header-content-length", str(len(said))) in request.headers


async def test_a_models_metadata_are_its_engines() -> None:
    house = surface()
    house.dispatcher.answer(json_response(b'{"name":"iris","platform":"sklearn"}'))
    call = await house.get("/v2/models/org/iris")
    assert (call.status, orjson.loads(call.content)["platform"]) == (200, "sklearn")
    assert (house.dispatcher.request.path, house.dispatcher.request.model) == (
        "/v2/models/org%2Firis",
        "org/iris",
    )


async def test_a_key_for_some_models_may_ask_for_those_only() -> None:
    keys = FakeKeys(Principal("k", "k", "t", scopes=limited(models=["iris"])))
    house = surface(keys=keys)
    assert (await house.post("/v2/models/iris/infer", b'{"inputs":[]}')).status == 200
    assert (await house.post("/v2/models/own/infer", b'{"inputs":[]}')).status == 403


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/v2/models/iris/infer", 405),
        ("POST", "/v2/models/iris", 405),
        ("POST", "/v2/repository/models/iris/load", 404),
        ("POST", "/v2/models/iris/infer", 404),
        ("POST", "/v2/models/%2e%2e/infer", 404),
        ("POST", "/v2/models/a%20b/infer", 400),
    ],
)
async def test_errors_are_in_its_shape(method: str, path: str, status: int) -> None:
    house = surface()
    house.dispatcher.fail(RouteNotSupported("No engine has it."))
    call = await (house.get(path) if method == "GET" else house.post(path, b"{}"))
    assert call.status == status
    said = orjson.loads(call.content)
    assert list(said) == ["error"]
    assert isinstance(said["error"], str)


async def test_a_tensor_whose_size_lies_never_reaches_an_engine() -> None:
    house = surface()
    said = b'{"inputs":[{"name":"x","shape":[4],"datatype":"UINT8","parameters":{"binary_data_size":4}}]}'
    call = await house.post("/v2/models/iris/infer", said + b"123", (SIZE, str(len(said)).encode()))
    assert (call.status, house.dispatcher.requests) == (400, [])
    assert "3 bytes follow the JSON" in orjson.loads(call.content)["error"]
