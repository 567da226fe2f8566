"""The backends for TensorFlow Serving and TorchServe say what their servers say of the named models."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import web

from agent.engines.http.model_servers import (
    TensorFlowServingBackend,
    TorchServeBackend,
    read_page,
    read_status,
    read_workers,
)
from agent.engines.settings import EngineSettings
from shared.protocol.messages import DeploymentStatus
from tests.support.model_servers import MODEL, TensorFlowServing, TorchServe

LOADED, LOADING, FAILED = DeploymentStatus.LOADED, DeploymentStatus.LOADING, DeploymentStatus.FAILED


def version(state: str, message: str = "") -> dict[str, Any]:
    return {"version": "1", "state": state, "status": {"error_code": "OK", "error_message": message}}


@pytest.mark.parametrize(
    ("status", "said", "found", "reason"),
    [
        (200, {"model_version_status": [version("AVAILABLE")]}, LOADED, ""),
        (200, {"model_version_status": [version("END"), version("AVAILABLE")]}, LOADED, ""),
        (200, {"model_version_status": [version("LOADING")]}, LOADING, "the model is being loaded"),
        (200, {"model_version_status": [version("START")]}, LOADING, "the model is being loaded"),
        (200, {"model_version_status": [version("END", "no weights")]}, FAILED, "no weights"),
        (404, {"error": "Could not find any versions of model m"}, FAILED, "any versions of model m"),
        (404, None, FAILED, "status 404"),
        (200, {"model_version_status": "x"}, FAILED, "status 200"),
        (200, {"model_version_status": [5, {"state": 3, "status": 4}]}, FAILED, "status 200"),
    ],
)
def test_the_state_of_a_model_is_that_of_its_versions(
    status: int, said: Any, found: DeploymentStatus, reason: str
) -> None:
    model = read_status("m", status, said)
    assert (model.id, model.status) == ("m", found)
    assert reason in model.reason


@asynccontextmanager
async def served(app: web.Application) -> AsyncIterator[str]:
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        yield "http://{}:{}".format(*runner.addresses[0][:2])
    finally:
        await runner.cleanup()


async def test_tensorflow_servings_models_are_offered_with_their_states() -> None:
    async with served(TensorFlowServing().app) as url:
        backend = TensorFlowServingBackend(EngineSettings(url=url, models=(MODEL, "none")))
        await backend.start()
        states = {each.model: each for each in backend.deployments()}
        await backend.close()
    assert (states[MODEL].status, states["none"].status) == (LOADED, FAILED)
    assert "Servable not found" in states["none"].reason
    assert (states[MODEL].routes, states[MODEL].kind) == (("predict", "any"), "tensorflow")


async def test_torchserves_models_are_offered_while_it_is_healthy() -> None:
    said = {"status": "Healthy"}

    async def ping(request: web.Request) -> web.Response:
        return web.json_response(said)

    app = web.Application()
    app.router.add_get("/ping", ping)
    async with served(app) as url:
        backend = TorchServeBackend(EngineSettings(url=url, models=(MODEL,)))
        await backend.start()
        (state,) = backend.deployments()
        assert (state.status, state.routes) == (LOADED, ("predictions", "predict", "any"))
        said["status"] = "Unhealthy"
        await backend.refresh()
        (state,) = backend.deployments()
        await backend.close()
    assert (state.status, state.reason) == (FAILED, "the engine is not well (/ping answers 200)")


async def test_torchserves_models_are_those_that_its_management_api_lists() -> None:
    server = TorchServe()
    async with served(server.app) as url, served(server.management) as management:
        backend = TorchServeBackend(EngineSettings(url=url, management=management))
        await backend.start()
        states = {each.model: each for each in backend.deployments()}
        assert {name: each.status for name, each in states.items()} == (
            {MODEL: LOADED, "cold": FAILED, "starting": LOADING}
        )
        assert states[MODEL].slots == 8, "a batch of four for each of its two workers"
        assert states["cold"].reason == "no worker of the model is ready"
        server.workers["cold"] = ["READY"]
        del server.workers[MODEL]
        await backend.refresh()
        assert {each.model for each in backend.deployments()} == {"cold", "starting"}
        await backend.close()
        named = TorchServeBackend(EngineSettings(url=url, management=management, models=("cold", "other")))
        await named.start()
        assert [(each.model, each.status) for each in named.deployments()] == [("cold", LOADED)]
        await named.close()


async def test_of_many_models_of_torchserve_those_that_are_named_are_found() -> None:
    server = TorchServe()
    server.workers |= {f"m{number}": ["READY"] for number in range(240)}
    async with served(server.app) as url, served(server.management) as management:
        backend = TorchServeBackend(EngineSettings(url=url, management=management, models=("m99",)))
        await backend.start()
        assert [each.model for each in backend.deployments()] == ["m99"]
        await backend.close()


@pytest.mark.parametrize("reachable", [False, True])
async def test_without_a_management_api_torchserves_models_are_those_that_are_named(reachable: bool) -> None:
    nothing = web.Application()
    async with served(TorchServe().app) as url, served(nothing) as management:
        if not reachable:
            management = "http://127.0.0.1:9"
        backend = TorchServeBackend(EngineSettings(url=url, management=management))
        await backend.start()
        assert not backend.deployments()
        assert "name its models in the agent's file" in backend.engine().reason
        assert management in backend.engine().reason
        await backend.close()
        named = TorchServeBackend(EngineSettings(url=url, management=management, models=(MODEL,)))
        await named.start()
        assert [(each.model, each.status) for each in named.deployments()] == [(MODEL, LOADED)]
        await named.close()


@pytest.mark.parametrize(
    ("said", "status"),
    [
        (None, FAILED),
        ([], FAILED),
        ([5], FAILED),
        ([{}], FAILED),
        ([{"workers": 2}], FAILED),
        ([{"workers": [7, {"status": "x"}]}], LOADING),
        ([{"workers": [{"status": "READY"}], "batchSize": "x"}], LOADED),
    ],
)
def test_whatever_a_description_says_it_is_read(said: Any, status: DeploymentStatus) -> None:
    assert read_workers("m", said).status is status


def test_a_page_of_a_list_has_names_and_where_the_next_one_begins() -> None:
    rows = [{"modelName": "a"}, {"modelName": "b c"}, {"modelName": 7}, "d"]
    assert read_page({"models": rows, "nextPageToken": 4}) == (["a"], "4")
    assert read_page({"models": []}) == ([], None)
    assert read_page([]) is None
    assert read_page({"models": None}) is None


async def test_the_stand_in_for_torchserve_is_taken_for_one() -> None:
    async with served(TorchServe().app) as url:
        backend = TorchServeBackend(EngineSettings(url=url, models=(MODEL,)))
        await backend.start()
        assert backend.engine().status is LOADED
        await backend.close()
