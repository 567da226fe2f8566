"""What engines say of their models beside the list: capabilities and context (docs/engines.md)."""

from typing import Any

import orjson

from agent.engines.http.probe import SHOWN, EngineView, Prober
from agent.engines.settings import EngineSettings
from tests.agent.support.fake_engine import FakeEngine, look


async def test_an_engine_is_asked_once_what_its_models_can_do() -> None:
    def show(method: str, body: bytes) -> object:
        assert method == "POST"
        return {"capabilities": ["tools", "no word", orjson.loads(body)["model"]]}

    models = {"data": [{"id": name, "owned_by": "library"} for name in ("a", "b")]}
    engine = FakeEngine({"/v1/models": models, "/api/show": show})
    prober = Prober(EngineSettings(url="http://e", name="e"), engine.ask)
    view = await prober.look(EngineView())
    assert [each.capabilities for each in view.deployments] == [("tools", "a"), ("tools", "b")]
    view = await prober.look(view)
    assert [each.capabilities for each in view.deployments] == [("tools", "a"), ("tools", "b")]
    assert engine.asked.count("/api/show") == 2
    models["data"].append({"id": "c", "owned_by": "library"})
    assert (await prober.look(view)).deployments[2].capabilities == ("tools", "c")
    assert engine.asked.count("/api/show") == 3


async def test_many_models_are_asked_about_a_few_in_each_look() -> None:
    models = {"data": [{"id": f"m{number}", "owned_by": "library"} for number in range(SHOWN + 1)]}
    engine = FakeEngine({"/v1/models": models, "/api/show": {"capabilities": ["tools"]}})
    prober = Prober(EngineSettings(url="http://e", name="e"), engine.ask)
    view = await prober.look(EngineView())
    assert [bool(each.capabilities) for each in view.deployments] == [True] * SHOWN + [False]
    view = await prober.look(view)
    assert all(each.capabilities for each in view.deployments)


async def test_one_list_says_what_all_models_of_an_engine_can_do() -> None:
    listed = {"/v1/models": {"data": [{"id": "org/m", "owned_by": "organization_owner"}]}}
    entry = {"key": "org/m", "capabilities": {"vision": True, "trained_for_tool_use": False}}
    view = await look({**listed, "/api/v1/models": {"models": [entry]}})
    assert view.deployments[0].capabilities == ("vision",)
    assert (await look(listed)).deployments[0].capabilities == (), "of an earlier release"


async def test_an_engine_with_one_model_says_more_of_it_beside_its_list() -> None:
    listed: dict[str, Any] = {"data": [{"id": "m", "owned_by": "llamacpp", "meta": {"n_ctx_train": 131072}}]}
    props = {"total_slots": 2, "default_generation_settings": {"n_ctx": 8192}, "modalities": {"vision": True}}
    (deployment,) = (await look({"/v1/models": listed, "/props": props})).deployments
    assert (deployment.context_tokens, deployment.capabilities, deployment.slots) == (8192, ("vision",), 2)
    listed = {"data": [dict[str, Any](id="m", owned_by="sglang", max_model_len=4096)]}
    said = {"/get_server_info": {"tool_call_parser": "x"}, "/get_model_info": {"is_generation": True}}
    (deployment,) = (await look({"/v1/models": listed, **said})).deployments
    assert (deployment.context_tokens, deployment.capabilities) == (4096, ("completion", "tools"))
    info = {"model_id": "m", "max_concurrent_requests": 128, "max_total_tokens": 2048}
    (deployment,) = (await look({"/v1/models": {"data": [{"id": "m"}]}, "/info": info})).deployments
    assert (deployment.kind, deployment.context_tokens) == ("tgi", 2048)


async def test_the_context_that_ollama_gives_a_model_shows_once_it_is_loaded() -> None:
    models = {"data": [{"id": "m:1b", "owned_by": "library"}]}
    running: dict[str, Any] = {"models": []}
    engine = FakeEngine({"/v1/models": models, "/api/show": {"capabilities": []}, "/api/ps": running})
    prober = Prober(EngineSettings(url="http://e", name="e"), engine.ask)
    view = await prober.look(EngineView())
    assert view.deployments[0].context_tokens is None
    running["models"].append({"name": "m:1b", "context_length": 4096})
    view = await prober.look(view)
    assert view.deployments[0].context_tokens == 4096
    running["models"].clear()
    assert (await prober.look(view)).deployments[0].context_tokens == 4096, "it gets as much the next time"
