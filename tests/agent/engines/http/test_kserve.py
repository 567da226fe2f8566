"""The backend for KServe's protocol offers what the index says, and loads and unloads by command."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import orjson
import pytest
from aiohttp import web

from agent.capacity.engine_registry import EngineRegistry
from agent.engines.backend import BackendRefused
from agent.engines.http.engine_client import SmallResponse
from agent.engines.http.kserve import KServeBackend, RepositoryIndex, read_index
from agent.engines.http.probe import NoModelList
from agent.engines.settings import EngineSettings
from shared.protocol.messages import Command, CommandVerb, DeploymentStatus
from tests.support.kserve_server import WHY_BROKEN, KServeServer

LOADED, LOADING, LOADABLE, FAILED = (
    DeploymentStatus.LOADED,
    DeploymentStatus.LOADING,
    DeploymentStatus.LOADABLE,
    DeploymentStatus.FAILED,
)


def entry(name: Any, state: Any = None, reason: Any = None) -> dict[str, Any]:
    return {"name": name, "version": "1", "state": state, "reason": reason}


@pytest.mark.parametrize(
    ("rows", "status", "reason"),
    [
        ([entry("m", "READY")], LOADED, ""),
        ([entry("m", "LOADING")], LOADING, "the model is being loaded"),
        ([entry("m", "UNLOADING")], LOADING, "the model is being unloaded"),
        ([entry("m", "UNAVAILABLE", "unloaded")], LOADABLE, ""),
        ([entry("m", "UNAVAILABLE", "")], LOADABLE, ""),
        ([{"name": "m"}], LOADABLE, ""),
        ([{"name": "m", "state": {"of": "m"}, "reason": {}}], LOADABLE, ""),
        ([entry("m", "UNAVAILABLE", "no weights")], FAILED, "no weights"),
        ([entry("m", "UNAVAILABLE", "unloaded"), entry("m", "READY")], LOADED, ""),
        ([entry("m", "READY"), entry("m", "UNAVAILABLE", "no weights")], LOADED, ""),
    ],
)
def test_the_state_of_a_model_is_that_of_its_best_version(
    rows: list[Any], status: DeploymentStatus, reason: str
) -> None:
    (model,) = read_index(rows, loads=True) or ()
    assert (model.id, model.status, model.reason) == ("m", status, reason)


def test_what_cannot_be_offered_is_left_out() -> None:
    rows = [entry("a b", "READY"), entry(None, "READY"), 5, entry("cold"), entry("m", "READY")]
    assert [model.id for model in read_index(rows, loads=False) or ()] == ["m"]
    assert read_index({"error": "no"}, loads=True) is None


def test_models_that_are_named_are_found_however_many_others_there_are() -> None:
    rows = [entry(f"m{number}", "READY") for number in range(300)]
    assert [model.id for model in read_index(rows, ("m250",), loads=False) or ()] == ["m250"]


async def test_without_an_index_the_named_models_are_asked_whether_they_are_ready() -> None:
    async def ask(path: str, method: str, body: bytes) -> SmallResponse:
        return SmallResponse(200 if path == "/v2/models/org%2Fa/ready" else 404, b"")

    models = await RepositoryIndex(ask, ("org/a", "b"))()
    assert [(model.id, model.status) for model in models] == [("org/a", LOADED), ("b", FAILED)]
    with pytest.raises(NoModelList, match="name them in the agent's file"):
        await RepositoryIndex(ask)()


async def test_a_server_that_is_not_well_is_not_asked_for_each_model() -> None:
    async def ask(path: str, method: str, body: bytes) -> SmallResponse:
        return SmallResponse(503, b"loading")

    with pytest.raises(NoModelList) as raised:
        await RepositoryIndex(ask, ("a",))()
    assert raised.value.loading


@asynccontextmanager
async def backend(*, loads: bool = True) -> AsyncIterator[tuple[KServeServer, KServeBackend]]:
    server = KServeServer()
    runner = web.AppRunner(server.app())
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    settings = EngineSettings(url=url, name="e", protocol="kserve", loads=loads, refresh_s=3600)
    made = KServeBackend(settings)
    await made.start()
    try:
        yield server, made
    finally:
        await made.close()
        await runner.cleanup()


def states(made: KServeBackend) -> dict[str, DeploymentStatus]:
    return {each.model: each.status for each in made.deployments()}


async def reached(made: KServeBackend, model: str, status: DeploymentStatus) -> None:
    """Returns once the model is there; each change of it is told."""
    changed = asyncio.Event()
    made.subscribe(changed.set)
    async with asyncio.timeout(60):
        while states(made)[model] is not status:
            changed.clear()
            await changed.wait()


async def test_models_of_the_index_are_offered_with_the_route_for_tensors() -> None:
    async with backend() as (_, made):
        assert states(made) == {"double": LOADED, "spare": LOADABLE, "broken": LOADABLE}
        first = made.deployments()[0]
        assert (made.kind, first.routes, first.managed) == ("kserve", ("infer", "any"), True)


async def test_a_model_is_loaded_and_unloaded_by_command() -> None:
    async with backend() as (server, made):
        made.load_model("e/spare")
        assert states(made)["spare"] is LOADING
        made.load_model("e/spare")
        with pytest.raises(BackendRefused, match="being loaded"):
            made.unload_model("e/spare")
        await reached(made, "spare", LOADED)
        made.unload_model("e/spare")
        await reached(made, "spare", LOADABLE)
        assert (server.counts["loads"], server.counts["unloads"]) == (1, 1)


async def test_why_a_model_was_not_loaded_is_kept_until_the_next_try() -> None:
    async with backend() as (_, made):
        made.load_model("e/broken")
        await reached(made, "broken", FAILED)
        assert next(d.reason for d in made.deployments() if d.model == "broken") == WHY_BROKEN
        made.load_model("e/broken")
        assert states(made)["broken"] is LOADING
        await reached(made, "broken", FAILED)


async def test_without_loading_only_what_is_loaded_is_offered() -> None:
    async with backend(loads=False) as (_, made):
        assert states(made) == {"double": LOADED}
        assert not made.deployments()[0].managed
        with pytest.raises(BackendRefused):
            made.load_model("e/double")


async def test_a_gateways_commands_reach_it_and_nothing_that_runs_is_unloaded() -> None:
    async with backend() as (server, made):
        registry = EngineRegistry()
        registry.add(made)
        assert registry.carry_out(Command(1, CommandVerb.LOAD, "e/spare", 0)).ok
        await reached(made, "spare", LOADED)
        place = registry.enter("session", "e/double")
        refused = registry.carry_out(Command(2, CommandVerb.UNLOAD, "e/double", 0))
        assert (refused.ok, refused.error) == (False, "1 requests run there")
        registry.leave(place, failed=False)
        assert registry.carry_out(Command(3, CommandVerb.UNLOAD, "e/double", 0)).ok
        await reached(made, "double", LOADABLE)
        assert orjson.dumps(server.counts) == b'{"infers":0,"cancelled":0,"loads":1,"unloads":1}'
