"""What the gateway answers itself: models, health, metrics."""

from dataclasses import replace

import orjson

from gateway.api.exchange.exchange import HttpSettings
from gateway.fleet.registry import ServedModel
from tests.gateway.api.support import (
    ASK,
    CHAT,
    FakeCatalog,
    Surface,
    error_in,
)


def info(name: str, ready: bool = True) -> ServedModel:
    return ServedModel(name, 1_700_000_000, "trunkline", ready, 1, ("chat",))


async def test_models_that_can_be_used_are_listed() -> None:
    surface = Surface(catalog=FakeCatalog(info("org/a"), info("b"), info("gone", ready=False)))
    found = orjson.loads((await surface.get("/v1/models")).content)
    assert [model["id"] for model in found["data"]] == ["org/a", "b"]
    assert found["object"] == "list"
    assert (found["first_id"], found["last_id"], found["has_more"]) == ("org/a", "b", False)


async def test_a_model_says_its_context_what_it_can_do_its_routes_and_which_are_translated() -> None:
    known = replace(info("m"), routes=("chat", "messages"), translated=("messages",))
    known = replace(known, context_tokens=8192, capabilities=("tools",))
    surface = Surface(catalog=FakeCatalog(known, info("n")))
    one, other = orjson.loads((await surface.get("/v1/models")).content)["data"]
    assert (one["context_length"], one["max_input_tokens"], one["capabilities"]) == (8192, 8192, ["tools"])
    assert (one["routes"], one["translated_routes"]) == (["chat", "messages"], ["messages"])
    assert (other["context_length"], other["capabilities"], other["translated_routes"]) == (None, [], [])


async def test_one_model_is_found_by_an_id_with_a_slash_and_also_while_it_is_gone() -> None:
    surface = Surface(catalog=FakeCatalog(info("org/a", ready=False)))
    call = await surface.get("/v1/models/org/a")
    found = orjson.loads(call.content)
    assert (found["id"], found["object"], found["created"], found["ready"]) == (
        "org/a",
        "model",
        1_700_000_000,
        False,
    )


async def test_a_model_nobody_serves_is_a_404(surface: Surface) -> None:
    call = await surface.get("/v1/models/nope")
    assert (call.status, error_in(call.content)["code"]) == (404, "model_not_found")


async def test_models_need_a_key(surface: Surface) -> None:
    assert (await surface.get("/v1/models", key=False)).status == 401


async def test_health_is_open_and_says_how_many_agents_there_are(surface: Surface) -> None:
    assert (await surface.get("/healthz", key=False)).status == 200
    ready = await surface.get("/readyz", key=False)
    assert (ready.status, orjson.loads(ready.content)) == (200, {"status": "ready", "agents": 1})


async def test_a_draining_gateway_is_alive_but_not_ready_and_refuses_with_a_wait(surface: Surface) -> None:
    surface.lifecycle.drain()
    assert (await surface.get("/healthz")).status == 200
    assert (await surface.get("/readyz")).status == 503
    call = await surface.post(CHAT, ASK)
    assert (call.status, error_in(call.content)["code"]) == (503, "shutting_down")
    assert call.headers["retry-after"] == "2"
    assert call.headers["connection"] == "close"


async def test_metrics_need_a_key_unless_they_are_public(surface: Surface) -> None:
    assert (await surface.get("/metrics", key=False)).status == 401
    assert (await surface.get("/metrics")).content == b"trunkline_up 1\n"
    public = Surface(HttpSettings(metrics_public=True))
    assert (await public.get("/metrics", key=False)).status == 200
