"""Aliases on a request's whole way through the HTTP surface: what the engine gets, what the client hears."""

import orjson
import pytest
import structlog
from prometheus_client import CollectorRegistry

from gateway.api.exchange.middleware import RequestMiddleware
from gateway.api.exchange.request_log import RequestLog
from gateway.api.routes import build_router
from gateway.domain.aliases import Alias, AliasTarget
from gateway.domain.errors import QueueFull
from gateway.domain.request import Principal, Request
from gateway.domain.scopes import limited
from gateway.pipeline.aliases import AliasCatalog, AliasFigures
from gateway.pipeline.pipeline import Pipeline
from tests.gateway.api.support import (
    EVENTS,
    JSON_TYPE,
    CountedRequests,
    FakeKeys,
    FakeMetrics,
    FakeResponse,
    Surface,
    json_response,
    whole_body,
)
from tests.gateway.pipeline.aliases.support import Desk, served

CHAT = "/v1/chat/completions"
BODY = b'{"messages":[],"model":"prod","stream":true}'


class Stage:
    """A surface in which names are looked up."""

    def __init__(self, *aliases: Alias, facts: bool = True, keys: FakeKeys | None = None) -> None:
        self.desk = Desk(*aliases)
        self.surface = Surface()
        self.counter = CountedRequests()
        self.registry = CollectorRegistry()
        surface, keys = self.surface, keys or FakeKeys()
        pipeline = Pipeline(keys, surface.dispatcher.run, None, self.desk.versions, facts=facts)
        catalog = AliasCatalog(self.desk.fleet.registry, self.desk.book, "me")
        router = build_router(pipeline, keys, catalog, FakeMetrics(), surface.lifecycle, surface.settings)
        log = RequestLog(self.counter, AliasFigures(self.registry))
        self.bodies: list[bytes] = []
        """Of the requests that were answered."""
        surface.app = RequestMiddleware(router, surface.settings, surface.budget, surface.lifecycle, log)

    def answer(self, response: FakeResponse) -> None:
        """From now on, this."""

        async def serve(request: Request) -> FakeResponse:
            self.bodies.append(await whole_body(request))
            return response

        self.surface.dispatcher.serve = serve


async def test_the_engine_gets_its_own_models_name_and_a_length_that_is_right() -> None:
    stage = Stage(Alias("prod", (AliasTarget("meta/llama", "v1"),)))
    stage.desk.serve(served("meta/llama", "v1"))
    dispatcher, bodies = stage.surface.dispatcher, stage.bodies
    response = FakeResponse(headers=EVENTS, chunks=(b"data: [DONE]\n\n",))
    response.version = "v1"
    stage.answer(response)
    with structlog.testing.capture_logs() as logs:
        call = await stage.surface.post(CHAT, BODY, JSON_TYPE)
    request = dispatcher.request
    assert (request.model, request.version) == ("meta/llama", "v1")
    assert bodies == [
        b'{"stream_options":{"include_usage":true},"messages":[],"model":"meta/llama","stream":true}'
    ]
    assert dict(request.headers)["content-length"] == str(len(bodies[0]))
    assert (call.status, call.headers["x-trunkline-model"]) == (200, "meta/llama@v1")
    (line,) = [each for each in logs if each["event"] == "request"]
    assert (line["model"], line["alias"], line["target"]) == ("meta/llama", "prod", "meta/llama@v1")
    assert stage.counter.finished == [("chat", "meta/llama", 200)]
    labels = {"alias": "prod", "target": "meta/llama@v1"}
    assert stage.registry.get_sample_value("trunkline_alias_requests_total", labels | {"status": "2xx"}) == 1
    assert stage.registry.get_sample_value("trunkline_alias_first_byte_seconds_count", labels) == 1


async def test_a_fallback_is_who_is_logged_and_counted() -> None:
    stage = Stage(Alias("prod", (AliasTarget("m"),), fallback=(AliasTarget("light"),)))
    stage.desk.serve(served("m"), served("light"))

    async def serve(request: Request) -> FakeResponse:
        if request.model == "m":
            raise QueueFull("full")
        return json_response()

    stage.surface.dispatcher.serve = serve
    allow = (b"x-trunkline-fallback", b"allow")
    call = await stage.surface.post(CHAT, BODY, JSON_TYPE, allow)
    assert (call.status, call.headers["x-trunkline-fallback"]) == (200, "light")
    assert stage.counter.finished == [("chat", "light", 200)]
    refused = await stage.surface.post(CHAT, BODY, JSON_TYPE)
    assert (refused.status, "x-trunkline-fallback" in refused.headers) == (429, False)
    labels = {"alias": "prod", "target": "m", "status": "4xx"}
    assert stage.registry.get_sample_value("trunkline_alias_requests_total", labels) == 1


async def test_a_form_and_a_path_name_the_model_too() -> None:
    stage = Stage(Alias("prod", (AliasTarget("m"),)))
    stage.desk.serve(served("m", routes=("audio", "any")))
    dispatcher, bodies = stage.surface.dispatcher, stage.bodies
    stage.answer(json_response())
    field = b'--B\r\nContent-Disposition: form-data; name="model"\r\n\r\n%s\r\n--B--\r\n'
    await stage.surface.post(
        "/v1/audio/transcriptions",
        field % b"prod",
        (b"content-type", b"multipart/form-data; boundary=B"),
    )
    assert bodies.pop() == field % b"m"
    assert dict(dispatcher.request.headers)["content-length"] == str(len(field % b"m"))
    await stage.surface.post("/engines/prod/tokenize?x=1", b'{"model":"prod"}', JSON_TYPE)
    assert (dispatcher.request.model, dispatcher.request.path) == ("m", "/tokenize?x=1")
    assert bodies.pop() == b'{"model":"m"}'
    await stage.surface.post(
        "/v1/audio/speech", b"prod", (b"x-model", b"prod"), (b"content-type", b"text/plain")
    )
    assert (dispatcher.request.model, bodies.pop()) == ("m", b"prod")


async def test_a_version_that_there_is_not_costs_nobody_anything() -> None:
    stage = Stage(Alias("prod", (AliasTarget("m", "v1"),)))
    stage.desk.serve(served("m", "v1"))
    call = await stage.surface.post(CHAT, BODY, JSON_TYPE, (b"x-trunkline-version", b"v2"))
    assert (call.status, b'"version_not_found"' in call.content) == (400, True)
    assert not stage.surface.dispatcher.requests


@pytest.mark.parametrize("facts", [True, False])
async def test_who_asks_for_a_model_by_its_own_name_is_told_nothing_new(facts: bool) -> None:
    stage = Stage(Alias("prod", (AliasTarget("m"),)), facts=facts)
    stage.desk.serve(served("m"))
    call = await stage.surface.post(CHAT, b'{"model":"m"}', JSON_TYPE)
    assert "x-trunkline-model" not in call.headers
    aliased = await stage.surface.post(CHAT, BODY, JSON_TYPE)
    assert ("x-trunkline-model" in aliased.headers) == facts


async def test_aliases_are_listed_and_found_by_clients() -> None:
    stage = Stage(Alias("prod", (AliasTarget("m", "v1"),)))
    stage.desk.serve(served("m", "v1"))
    listed = await stage.surface.get("/v1/models")
    assert listed.content.count(b'"object":"model"') == 2
    assert (await stage.surface.get("/v1/models/prod")).status == 200


async def test_an_alias_counts_by_its_own_name_in_what_a_key_may_ask_for() -> None:
    alias = Alias("prod", (AliasTarget("llama"),), fallback=(AliasTarget("small"),))
    for models, statuses, listed in (
        (["prod"], {"prod": 200, "llama": 403, "small": 403}, ["prod"]),
        (["llama"], {"prod": 403, "llama": 200, "small": 403}, ["llama"]),
    ):
        stage = Stage(alias, keys=FakeKeys(Principal("k", "limited", "t", scopes=limited(models))))
        stage.desk.serve(served("llama"), served("small"))
        for model, status in statuses.items():
            call = await stage.surface.post(CHAT, BODY.replace(b"prod", model.encode()), JSON_TYPE)
            assert (model, call.status) == (model, status)
        found = orjson.loads((await stage.surface.get("/v1/models")).content)
        assert [each["id"] for each in found["data"]] == listed
