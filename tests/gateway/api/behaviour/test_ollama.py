"""Ollama's own paths: its shapes, its streams, its list of models."""

import orjson
import pytest

from gateway.api.exchange.exchange import HttpSettings
from gateway.domain.errors import RouteNotSupported, StreamBroken
from gateway.domain.request import Principal
from gateway.domain.scopes import limited
from gateway.fleet.registry import ServedModel
from shared.protocol.errors import ErrorCode
from tests.gateway.api.support import BEARER, EVENTS, FakeCatalog, FakeResponse, Surface

LINES = (("content-type", "application/x-ndjson"),)
TOKEN = b'{"model":"m","message":{"content":"Hi"},"done":false}\n'


@pytest.mark.parametrize("path", ["/api/chat", "/api/generate"])
@pytest.mark.parametrize(
    ("body", "streaming"), [(b'{"model":"m"}', True), (b'{"model":"m","stream":false}', False)]
)
async def test_its_answers_are_streams_unless_the_request_says_otherwise(
    path: str, body: bytes, streaming: bool
) -> None:
    surface = Surface()
    await surface.post(path, body)
    request = surface.dispatcher.request
    assert (request.streaming, request.route, request.need) == (streaming, "ollama", f"ollama{path}")
    assert (request.path, request.output_tokens) == (path, 256)


async def test_lines_pass_untouched_and_nothing_holds_them_back() -> None:
    surface = Surface()
    surface.dispatcher.answer(FakeResponse(200, LINES, (TOKEN, TOKEN)))
    call = await surface.post("/api/chat", b'{"model":"m"}')
    assert call.content == TOKEN * 2
    assert call.headers["x-accel-buffering"] == "no"


@pytest.mark.parametrize(("begun", "gap"), [(TOKEN, b""), (TOKEN[:9], b"\n")])
async def test_a_stream_that_breaks_ends_with_a_line_that_its_clients_raise(begun: bytes, gap: bytes) -> None:
    surface = Surface()
    response = surface.dispatcher.answer(FakeResponse(200, LINES, (begun,), ended=False))
    response.break_off(StreamBroken(ErrorCode.ENGINE_FAILED, "The engine died."))
    call = await surface.post("/api/chat", b'{"model":"m"}')
    assert call.complete
    assert call.content == begun + gap + b'{"error":"The engine died."}\n'


async def test_no_comments_come_while_a_stream_of_lines_waits() -> None:
    calls, held = [], []
    for path in ("/api/chat", "/v1/chat/completions"):
        surface = Surface(HttpSettings(comment_interval_s=0.001))
        held.append(surface.dispatcher.hold())
        call = surface.ask("POST", path, BEARER)
        call.body(b'{"model":"m","stream":true}')
        await surface.dispatcher.arrived.wait()
        calls.append(call)
    lines, events = calls
    await events.until(lambda call: len(call.sent) > 3)  # so the other one had time for as many
    assert lines.sent == []
    for future, headers in zip(held, (LINES, EVENTS), strict=True):
        future.set_result(FakeResponse(200, headers, (TOKEN,)))
    assert (await lines.done()).content == TOKEN
    await events.done()


async def test_errors_are_in_its_shape() -> None:
    surface = Surface()
    surface.dispatcher.fail(RouteNotSupported("No engine has it."))
    call = await surface.post("/api/show", b'{"model":"m"}')
    assert (call.status, orjson.loads(call.content)) == (404, {"error": "No engine has it."})
    unknown = await surface.post("/api/pull", b"{}")
    assert unknown.status == 404
    assert list(orjson.loads(unknown.content)) == ["error"]


async def test_the_model_may_be_called_name_as_its_first_clients_did() -> None:
    surface = Surface()
    await surface.post("/api/show", b'{"name":"m"}')
    assert surface.dispatcher.request.model == "m"
    assert (await surface.post("/v1/embeddings", b'{"name":"m"}')).status == 400


async def test_the_list_has_what_the_key_may_see_in_its_shape() -> None:
    infos = [ServedModel(name, 1_700_000_000, "trunkline", True, 1, ("chat",)) for name in ("a", "b")]
    surface = Surface(catalog=FakeCatalog(*infos))
    listed = orjson.loads((await surface.get("/api/tags")).content)["models"]
    assert [each["name"] for each in listed] == ["a", "b"]
    assert listed[0]["modified_at"] == "2023-11-14T22:13:20Z"
    assert {"model", "size", "digest", "details"} <= listed[0].keys()
    surface.keys.principal = Principal("k", "limited", "t", scopes=limited(models=["b"]))
    listed = orjson.loads((await surface.get("/api/tags")).content)["models"]
    assert [each["name"] for each in listed] == ["b"]
