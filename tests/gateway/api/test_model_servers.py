"""TensorFlow Serving's, TorchServe's and TGI's paths at the gateway, and what it answers of them itself."""

import orjson
import pytest

from gateway.fleet.registry import ServedModel
from tests.gateway.api.support import BEARER, FakeCatalog, Surface, json_response

ANY = ("any", "predict", "predictions")


def served(name: str, *routes: str) -> ServedModel:
    return ServedModel(name, 1, "trunkline", True, 1, routes or ANY)


def surface() -> Surface:
    return Surface(catalog=FakeCatalog(served("half"), served("gpt", "chat"), served("odd/metadata")))


@pytest.mark.parametrize(
    ("method", "path", "model", "route"),
    [
        ("POST", "/v1/models/half:predict", "half", "predict"),
        ("POST", "/v1/models/half/versions/3:classify", "half", "predict"),
        ("GET", "/v1/models/half/versions/3", "half", "predict"),
        ("GET", "/v1/models/half/metadata", "half", "predict"),
        ("POST", "/predictions/half", "half", "predictions"),
        ("PUT", "/predictions/half/1.0", "half", "predictions"),
        ("POST", "/explanations/half", "half", "predictions"),
    ],
)
async def test_requests_go_to_the_model_of_their_path(method: str, path: str, model: str, route: str) -> None:
    house = surface()
    house.dispatcher.answer(json_response(b'{"predictions":[1]}'))
    call = house.ask(method, path, BEARER, (b"content-length", b"0"))
    call.body(b"")
    await call.done()
    request = house.dispatcher.request
    assert (call.status, call.content) == (200, b'{"predictions":[1]}')
    assert (request.method, request.path, request.model) == (method, path, model)
    assert (request.route, request.need) == (route, route)


async def test_the_bare_path_of_a_model_is_openais() -> None:
    answer = orjson.loads((await surface().get("/v1/models/half")).content)
    assert (answer["id"], answer["object"]) == ("half", "model")
    missing = await surface().get("/v1/models/none")
    assert (missing.status, orjson.loads(missing.content)["error"]["code"]) == (404, "model_not_found")


async def test_a_model_that_is_called_as_a_path_ends_stays_readable() -> None:
    answer = orjson.loads((await surface().get("/v1/models/odd/metadata")).content)
    assert answer["id"] == "odd/metadata"


@pytest.mark.parametrize(
    ("method", "path", "status", "members"),
    [
        ("GET", "/v1/models/half:predict", 405, ["error"]),
        ("POST", "/v1/models/half/metadata", 405, ["error"]),
        ("POST", "/v1/models/half:load", 405, ["error"]),
        ("DELETE", "/predictions/half", 405, ["code", "type", "message"]),
        ("POST", "/predictions/a/b/c", 404, ["code", "type", "message"]),
        ("GET", "/generate", 405, ["error", "error_type"]),
    ],
)
async def test_errors_are_in_the_servers_shape(
    method: str, path: str, status: int, members: list[str]
) -> None:
    call = surface().ask(method, path, BEARER, (b"content-length", b"0"))
    call.body(b"")
    await call.done()
    assert (call.status, list(orjson.loads(call.content))) == (status, members)


async def test_models_are_listed_for_torchserves_clients_too() -> None:
    answer = orjson.loads((await surface().get("/models")).content)
    assert [each["id"] for each in answer["data"]] == ["half", "gpt", "odd/metadata"]
    assert [each["modelName"] for each in answer["models"]] == ["half", "odd/metadata"]


async def test_a_ping_says_whether_requests_are_taken() -> None:
    house = surface()
    assert orjson.loads((await house.get("/ping", key=False)).content) == {"status": "Healthy"}
    house.lifecycle.drain()
    stopping = await house.get("/ping", key=False)
    assert (stopping.status, orjson.loads(stopping.content)) == (503, {"status": "Unhealthy"})


async def test_clients_of_tgi_post_to_the_front_page_and_others_read_it() -> None:
    house = surface()
    house.dispatcher.answer(json_response(b'[{"generated_text":"x"}]'))
    kind = (b"content-type", b"application/json")
    call = await house.post("/", b'{"inputs":"x","model":"gpt"}', kind)
    assert (call.status, house.dispatcher.request.path) == (200, "/")
    assert (house.dispatcher.request.model, house.dispatcher.request.route) == ("gpt", "generate")
    assert b"trunkline" in (await house.get("/", key=False)).content.lower()
    unnamed = await house.post("/generate", b'{"inputs":"x"}', kind)
    assert (unnamed.status, orjson.loads(unnamed.content)["error_type"]) == (400, "validation")


async def test_the_info_of_a_server_is_asked_for_by_its_model() -> None:
    house = surface()
    house.dispatcher.answer(json_response(b'{"model_id":"gpt"}'))
    assert (await house.get("/info", (b"x-model", b"gpt"))).status == 200
    assert (house.dispatcher.request.need, house.dispatcher.request.method) == ("generate/info", "GET")


async def test_a_stream_is_one_by_its_path() -> None:
    house = surface()
    house.dispatcher.answer(json_response(b"{}"))
    kind = (b"content-type", b"application/json")
    await house.post("/generate_stream", b'{"inputs":"x","model":"gpt"}', kind)
    assert house.dispatcher.request.streaming
    house.dispatcher.answer(json_response(b"{}"))
    await house.post("/generate", b'{"inputs":"x","model":"gpt"}', kind)
    assert not house.dispatcher.request.streaming
