"""The whole surface over raw ASGI, with a dispatcher that does what the test says."""

import asyncio
import sys
from contextlib import closing

import orjson
import pytest

from gateway.api.exchange.exchange import HttpSettings
from gateway.api.exchange.inbound import BodyLimits
from gateway.domain.errors import (
    EngineError,
    ModelNotFound,
    NoDeployment,
    Overloaded,
    QueueFull,
    RequestError,
    StreamBroken,
)
from gateway.domain.request import Request
from gateway.fleet.registry import ServedModel
from gateway.pipeline.bodies import BodyReader
from gateway.storage.errors import StateBusy
from shared.protocol.errors import ErrorCode
from tests.gateway.api.support import (
    BEARER,
    EVENTS,
    JSON_TYPE,
    MIB,
    FakeCatalog,
    FakeResponse,
    Surface,
    json_response,
    whole_body,
)

CHAT = "/v1/chat/completions"
ASK = b'{"model":"m","messages":[]}'
STREAM = b'{"model":"m","stream":true}'
FORM_TYPE = (b"content-type", b"multipart/form-data; boundary=XX")


@pytest.fixture
async def surface() -> Surface:
    return Surface()


def error_in(content: bytes) -> dict[str, object]:
    return dict(orjson.loads(content)["error"])


# --- What is answered ---


async def test_an_engines_answer_reaches_the_client(surface: Surface) -> None:
    call = await surface.post(CHAT, ASK, JSON_TYPE)
    assert (call.status, call.content) == (200, b'{"ok":true}')
    assert call.headers["content-length"] == "11"
    assert call.headers["x-trunkline-agent"] == "gpu-1"
    assert surface.dispatcher.request.body.prefix == b""  # given back at the end


@pytest.mark.parametrize(
    ("path", "route"),
    [
        (CHAT, "chat"),
        ("/v1/completions", "completions"),
        ("/v1/responses", "responses"),
        ("/v1/embeddings", "embeddings"),
        ("/v1/rerank", "rerank"),
        ("/v1/audio/speech", "audio"),
        ("/v1/images/generations", "images"),
        ("/v1/messages", "messages"),
        ("/v1/messages/count_tokens", "messages"),
        ("/engines/m/tokenize", "any"),
    ],
)
async def test_every_path_has_its_route(surface: Surface, path: str, route: str) -> None:
    assert (await surface.post(path, ASK)).status == 200
    request = surface.dispatcher.request
    assert request.route == route
    assert request.path == (path if route != "any" else "/tokenize")
    assert request.model == "m"


async def test_an_engine_path_takes_any_method_body_and_query(surface: Surface) -> None:
    call = surface.ask(
        "DELETE", "/engines/org%2Fm/files/a%20b", BEARER, decoded="/engines/org/m/files/a b", query=b"x=1"
    )
    call.body(b"not json")
    assert (await call.done()).status == 200
    request = surface.dispatcher.request
    assert (request.method, request.model, request.path) == ("DELETE", "org/m", "/files/a%20b?x=1")


async def test_an_engine_path_that_climbs_is_a_400(surface: Surface) -> None:
    call = await surface.get("/engines/m/%2e%2e/other")
    assert call.status == 400
    assert surface.dispatcher.requests == []


async def test_the_key_may_come_the_anthropic_way(surface: Surface) -> None:
    call = await surface.post("/v1/messages", ASK, (b"x-api-key", b"sk-tl-test"), key=False)
    assert call.status == 200
    assert "request-id" in call.headers


@pytest.mark.parametrize(
    "headers",
    [
        (),
        ((b"authorization", b"Basic sk-tl-test"),),
        ((b"authorization", b"Bearer"),),
        ((b"authorization", b"Bearer wrong"),),
        ((b"x-api-key", b"wrong"),),
    ],
)
async def test_without_a_key_nothing_is_read_or_answered(
    surface: Surface, headers: tuple[tuple[bytes, bytes], ...]
) -> None:
    call = surface.ask("POST", CHAT, (b"content-length", b"5"), *headers)
    await call.done()
    assert call.status == 401
    assert error_in(call.content)["code"] == "invalid_api_key"
    assert surface.dispatcher.requests == []


async def test_a_database_that_fails_lets_nobody_in_and_asks_to_come_again(
    surface: Surface, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def broken(self: object, presented: str) -> None:
        raise StateBusy("locked")

    monkeypatch.setattr("tests.gateway.api.support.FakeKeys.identify", broken)
    call = await surface.post(CHAT, ASK)
    assert call.status == 503
    assert call.headers["retry-after"] == "5"


async def test_an_unknown_path_names_the_nearest(surface: Surface) -> None:
    call = await surface.get("/v1/chat/completion", key=False)
    assert call.status == 404
    assert "/v1/chat/completions" in str(error_in(call.content)["message"])
    assert call.headers["x-request-id"].startswith("req_")


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [("GET", CHAT, "POST"), ("POST", "/v1/models", "GET, HEAD"), ("PUT", "/healthz", "GET, HEAD")],
)
async def test_a_wrong_method_names_the_right_one(
    surface: Surface, method: str, path: str, allowed: str
) -> None:
    call = await surface.get(path, method=method)
    assert (call.status, call.headers["allow"]) == (405, allowed)


@pytest.mark.parametrize("path", ["/v1/audio/../models", "/v1/audio/", "/v1/", "//v1/models"])
async def test_paths_that_are_none_are_404s(surface: Surface, path: str) -> None:
    assert (await surface.post(path, ASK)).status == 404


async def test_a_plain_request_for_the_tunnel_is_told_what_it_is(surface: Surface) -> None:
    assert (await surface.get("/tunnel")).status == 426


async def test_anthropic_clients_get_errors_in_their_shape(surface: Surface) -> None:
    for call in (
        await surface.post("/v1/messages", b"{", (b"x-api-key", b"sk-tl-test"), key=False),
        await surface.get("/v1/models/nope", (b"anthropic-version", b"2023-06-01")),
    ):
        body = orjson.loads(call.content)
        assert body["type"] == "error"
        assert body["error"]["type"] in ("invalid_request_error", "not_found_error")
        assert body["request_id"] == call.headers["request-id"]


async def test_the_clients_request_id_is_kept_everywhere(surface: Surface) -> None:
    call = await surface.post(CHAT, ASK, (b"x-request-id", b"my-1"))
    assert call.headers["x-request-id"] == "my-1"
    assert surface.dispatcher.request.id == "my-1"
    assert surface.finished[0][0].id == "my-1"


# --- Models, health, metrics ---


def info(name: str, ready: bool = True) -> ServedModel:
    return ServedModel(name, 1_700_000_000, "trunkline", ready, 1, ("chat",))


async def test_models_that_can_be_used_are_listed() -> None:
    surface = Surface(catalog=FakeCatalog(info("org/a"), info("b"), info("gone", ready=False)))
    found = orjson.loads((await surface.get("/v1/models")).content)
    assert [model["id"] for model in found["data"]] == ["org/a", "b"]
    assert found["object"] == "list"
    assert (found["first_id"], found["last_id"], found["has_more"]) == ("org/a", "b", False)


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


# --- Errors of the stages behind ---


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (ModelNotFound("no such model"), 404),
        (QueueFull("full", retry_after_s=3), 429),
        (EngineError("died"), 502),
        (NoDeployment("none", retry_after_s=1), 503),
    ],
)
async def test_what_dispatch_says_the_client_hears(
    surface: Surface, error: RequestError, status: int
) -> None:
    surface.dispatcher.fail(error)
    call = await surface.post(CHAT, ASK)
    assert call.status == status
    assert error_in(call.content)["message"] == error.message
    assert ("retry-after" in call.headers) == (error.retry_after_s is not None)


async def test_the_unexpected_is_a_500_that_says_where_to_look_and_nothing_else(
    surface: Surface, capsys: pytest.CaptureFixture[str]
) -> None:
    surface.dispatcher.fail(ValueError("secret detail"))
    call = await surface.post(CHAT, ASK)
    assert call.status == 500
    assert b"secret" not in call.content
    assert call.headers["x-request-id"] in str(error_in(call.content)["message"])
    logged = capsys.readouterr()
    assert call.headers["x-request-id"] in logged.out + logged.err
    assert surface.finished[0][1] == 500


async def test_an_engines_own_error_goes_through_as_it_is(surface: Surface) -> None:
    body = b'{"error":{"message":"context too long"}}'
    surface.dispatcher.answer(json_response(body, 400))
    call = await surface.post(CHAT, ASK)
    assert (call.status, call.content) == (400, body)


async def test_an_answer_that_breaks_stays_unended(surface: Surface) -> None:
    response = surface.dispatcher.answer(FakeResponse(chunks=(b"half",), ended=False))
    response.break_off(StreamBroken(ErrorCode.ENGINE_FAILED, "died"))
    call = await surface.post(CHAT, ASK)
    assert call.content == b"half"
    assert not call.complete
    assert surface.finished[0][1] == 502


async def test_a_stream_that_breaks_ends_with_its_error(surface: Surface) -> None:
    response = surface.dispatcher.answer(FakeResponse(headers=EVENTS, chunks=(b"data: 1\n\n",), ended=False))
    response.break_off(StreamBroken(ErrorCode.ENGINE_FAILED, "died"))
    call = await surface.post(CHAT, STREAM)
    assert call.complete
    assert call.content.startswith(b'data: 1\n\ndata: {"error":{"message":"died"')


# --- Bodies ---


async def test_a_json_body_is_read_whole_and_sent_as_it_is(surface: Surface) -> None:
    body = b'{"model":"m","input":"' + b"x" * (2 * MIB) + b'"}'
    bodies: list[bytes] = []

    async def serve(request: Request) -> FakeResponse:
        bodies.append(await whole_body(request))
        return json_response()

    surface.dispatcher.serve = serve
    assert (await surface.post("/v1/embeddings", body)).status == 200
    assert bodies == [body]
    assert surface.budget.used_bytes == 0


@pytest.mark.parametrize(
    ("body", "headers", "status"),
    [
        (b"", (), 400),
        (b"{", (), 400),
        (b'{"model": 1}', (), 400),
        (ASK, ((b"content-encoding", b"gzip"),), 415),
        (b"--XX\r\nbroken", (FORM_TYPE,), 400),
        (b"", ((b"content-type", b"multipart/form-data"),), 400),
        (b"a" * 2000, (), 413),
        (ASK, ((b"x", b"y" * 40_000),), 431),
    ],
)
async def test_bad_input_has_a_clear_status(
    body: bytes, headers: tuple[tuple[bytes, bytes], ...], status: int
) -> None:
    surface = Surface(HttpSettings(BodyLimits(body_bytes=1000)))
    call = await surface.post(CHAT, body, *headers)
    assert call.status == status
    assert error_in(call.content)["message"]
    assert surface.budget.used_bytes == 0


async def test_a_body_without_a_length_is_bounded_too() -> None:
    surface = Surface(HttpSettings(BodyLimits(body_bytes=1000)))
    call = surface.ask("POST", CHAT, BEARER, (b"transfer-encoding", b"chunked"))
    for _ in range(11):
        call.body(b"x" * 100, more=True)
    assert (await call.done()).status == 413


async def test_a_body_that_may_not_be_is_refused_with_a_reason_and_a_time() -> None:
    surface = Surface()

    def refuse(size_bytes: int) -> None:
        raise Overloaded("no memory")

    surface.budget.check = refuse
    call = await surface.post(CHAT, b'{"model":"m"}')
    assert (call.status, error_in(call.content)["code"]) == (503, "overloaded")
    assert call.headers["retry-after"] == "5"
    assert surface.budget.used_bytes == 0


async def test_bodies_of_all_requests_share_one_budget() -> None:
    surface = Surface(buffer_bytes=2 * MIB)
    held = surface.dispatcher.hold()
    first = surface.ask("POST", CHAT, BEARER, (b"content-length", b"%d" % (MIB // 2 + 20)))
    first.body(b'{"model":"m","x":"%b"}' % (b"x" * (MIB // 2)))
    async with asyncio.timeout(5):
        await surface.dispatcher.arrived.wait()
    second = await surface.post(CHAT, b'{"model":"m","x":"%b"}' % (b"x" * (MIB // 2)))
    assert (second.status, error_in(second.content)["code"]) == (503, "buffers_full")
    third = surface.ask("POST", CHAT, BEARER)
    third.body(b'{"model":"m"}')
    held.set_result(json_response())
    assert (await first.done()).status == 200
    assert (await third.done()).status == 200
    assert surface.budget.used_bytes == 0


async def test_a_long_body_is_read_by_another_process() -> None:
    reader = BodyReader(1)
    surface = Surface(reader=reader)
    content = b"x" * MIB
    body = b'{"messages":[{"role":"user","content":"%b"}],"stream":true,"model":"m"}' % content
    call = await surface.post(CHAT, body)
    request = surface.dispatcher.request
    assert (call.status, request.model, request.streaming) == (200, "m", True)
    assert request.prompt_bytes > MIB
    broken = await surface.post(CHAT, body[:-1])
    assert (broken.status, error_in(broken.content)["code"]) == (400, "invalid_json")
    deep = b'{"model":"m","tools":%b,"x":"%b"}' % (b"[" * 300 + b"]" * 300, content)
    for each in (deep, deep.replace(content, b"")):
        refused = await surface.post(CHAT, each)
        assert (refused.status, error_in(refused.content)["param"]) == (400, "tools")
    reader.close()


@pytest.mark.skipif(sys.platform != "linux", reason="the memory of a process is limited on Linux only")
async def test_a_body_that_takes_too_much_memory_is_refused_and_no_other_is() -> None:
    none = "import gateway.pipeline.bodies.child as c; c.LIMIT_TIMES = c.LIMIT_MORE_BYTES = 0; exit(c.main())"
    with closing(BodyReader(1, (sys.executable, "-P", "-c", none))) as reader:
        surface = Surface(reader=reader)
        long = await surface.post(CHAT, b'{"model":"m","prompt":"%b"}' % (b"x" * 8 * MIB))
        error = error_in(long.content)
        assert (long.status, error["code"]) == (413, "request_too_large")
        assert "more memory" in str(error["message"])
        assert (await surface.post(CHAT, b'{"model":"m","prompt":"x"}')).status == 200
        assert surface.budget.used_bytes == 0


def form(file_bytes: int, *, model_first: bool = True) -> bytes:
    model = b'--XX\r\ncontent-disposition: form-data; name="model"\r\n\r\nwhisper\r\n'
    head = b'--XX\r\ncontent-disposition: form-data; name="file"; filename="a.wav"\r\n\r\n'
    file = head + b"x" * file_bytes + b"\r\n"
    return (model + file if model_first else file + model) + b"--XX--\r\n"


@pytest.mark.parametrize("model_first", [True, False])
async def test_a_file_is_streamed_once_its_model_is_known(surface: Surface, model_first: bool) -> None:
    body = form(3 * MIB, model_first=model_first)
    seen: list[tuple[int, bytes]] = []

    async def serve(request: Request) -> FakeResponse:
        seen.append((len(request.body.prefix), await whole_body(request)))
        return json_response()

    surface.dispatcher.serve = serve
    call = surface.ask(
        "POST", "/v1/audio/transcriptions", BEARER, FORM_TYPE, (b"content-length", str(len(body)).encode())
    )
    for start in range(0, len(body), 64 * 1024):
        call.body(body[start : start + 64 * 1024], more=start + 64 * 1024 < len(body))
    assert (await call.done()).status == 200
    [(prefix_bytes, sent)] = seen
    assert sent == body
    assert (prefix_bytes <= MIB + 64 * 1024) == model_first
    request = surface.dispatcher.request
    assert request.model == "whisper"
    assert dict(request.headers)["content-length"] == str(len(body))


async def test_a_body_that_stops_coming_fails_its_upload(surface: Surface) -> None:
    surface = Surface(HttpSettings(BodyLimits(grace_s=0.01)))

    async def serve(request: Request) -> FakeResponse:
        await whole_body(request)
        return json_response()

    surface.dispatcher.serve = serve
    call = surface.ask("POST", "/engines/m/upload", BEARER, (b"transfer-encoding", b"chunked"))
    call.body(b"x" * (MIB + 1), more=True)
    assert (await call.done()).status == 408


# --- Waiting and leaving ---


async def test_a_stream_that_waits_gets_comments_then_its_events() -> None:
    surface = Surface(HttpSettings(comment_interval_s=0.001))
    held = surface.dispatcher.hold()
    call = surface.ask("POST", CHAT, BEARER)
    call.body(STREAM)
    await call.until(lambda call: len(call.sent) >= 3)
    held.set_result(FakeResponse(headers=EVENTS, chunks=(b"data: 1\n\n", b"data: [DONE]\n\n")))
    await call.done()
    assert call.headers["content-type"].startswith("text/event-stream")
    comments, _, events = call.content.partition(b"data: ")
    assert comments.strip(b"\n") == b"\n\n".join([b": waiting"] * comments.count(b":"))
    assert events == b"1\n\ndata: [DONE]\n\n"


async def test_an_error_after_the_first_comment_is_an_event() -> None:
    surface = Surface(HttpSettings(comment_interval_s=0.001))
    held = surface.dispatcher.hold()
    call = surface.ask("POST", CHAT, BEARER)
    call.body(STREAM)
    await call.until(lambda call: len(call.sent) >= 2)
    held.set_exception(QueueFull("full"))
    await call.done()
    assert call.status == 200
    assert call.complete
    assert b'data: {"error":{"message":"full"' in call.content
    assert surface.finished[0][1] == 429


async def test_a_request_for_one_piece_gets_no_comments() -> None:
    surface = Surface(HttpSettings(comment_interval_s=0.0))
    held = surface.dispatcher.hold()
    call = surface.ask("POST", CHAT, BEARER)
    call.body(ASK)
    await surface.dispatcher.arrived.wait()
    await asyncio.sleep(0)
    assert call.sent == []
    held.set_result(json_response())
    assert (await call.done()).status == 200


async def test_a_client_that_leaves_the_queue_takes_its_request_along(surface: Surface) -> None:
    surface.dispatcher.hold()
    call = surface.ask("POST", CHAT, BEARER)
    call.body(ASK)
    await surface.dispatcher.arrived.wait()
    call.disconnect()
    await call.done()
    assert surface.dispatcher.cancelled == 1
    assert call.sent == []
    assert surface.finished[0][1] == 499
    assert surface.lifecycle.in_flight == 0


async def test_a_client_that_leaves_a_silent_stream_frees_the_engine(surface: Surface) -> None:
    response = surface.dispatcher.answer(FakeResponse(headers=EVENTS, chunks=(b"data: 1\n\n",), ended=False))
    call = surface.ask("POST", CHAT, BEARER)
    call.body(STREAM)
    await call.until(lambda call: len(call.sent) >= 2)
    assert not response.aborted
    call.disconnect()
    await call.done()
    assert response.aborted
    assert surface.finished[0][1] == 499


async def test_a_client_that_leaves_its_upload_frees_the_engine(surface: Surface) -> None:
    async def serve(request: Request) -> FakeResponse:
        await whole_body(request)
        return json_response()

    surface.dispatcher.serve = serve
    call = surface.ask("POST", "/engines/m/upload", BEARER, (b"transfer-encoding", b"chunked"))
    call.body(b"x" * (MIB + 1), more=True)
    await surface.dispatcher.arrived.wait()
    call.disconnect()
    await call.done()
    assert surface.finished[0][1] == 499


async def test_a_client_that_does_not_read_gives_no_credit(surface: Surface) -> None:
    response = surface.dispatcher.answer(FakeResponse(headers=EVENTS, ended=False))
    call = surface.ask("POST", CHAT, BEARER)
    call.body(STREAM)
    await call.until(lambda call: call.sent)
    call.gate.clear()
    response.feed(b"a" * 10)
    for _ in range(5):
        await asyncio.sleep(0)
    assert response.consumed_bytes == 0
    call.gate.set()
    response.end()
    await call.done()
    assert response.consumed_bytes == 10


async def test_being_cancelled_from_outside_is_not_taken_for_a_client_that_left(surface: Surface) -> None:
    surface.dispatcher.hold()
    call = surface.ask("POST", CHAT, BEARER)
    call.body(ASK)
    await surface.dispatcher.arrived.wait()
    call.task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call.task
    assert surface.lifecycle.in_flight == 0


async def test_nothing_is_left_running(surface: Surface, no_leaks: None) -> None:
    for body in (ASK, STREAM, b"{"):
        await surface.post(CHAT, body)


AWAY = ["https://evil.example/", "//evil.example/v1", "/..//evil.example", "../../../healthz"]


@pytest.mark.parametrize("location", ["/docs/", *AWAY])
async def test_a_redirect_of_an_engine_is_not_passed_on(location: str) -> None:
    surface = Surface()
    surface.dispatcher.answer(FakeResponse(307, (("location", location), ("refresh", f"0; url={location}"))))
    call = await surface.post(CHAT, ASK, JSON_TYPE)
    assert (call.status, orjson.loads(call.content)["error"]["code"]) == (502, "engine_redirect")
    assert "location" not in call.headers
    assert "refresh" not in call.headers
    assert b"evil" not in call.content


@pytest.mark.parametrize("location", AWAY)
async def test_below_engines_a_redirect_that_leads_away_is_not_passed_on(location: str) -> None:
    surface = Surface()
    surface.dispatcher.answer(FakeResponse(307, (("location", location),)))
    call = await surface.post("/engines/m/generate", b"{}", JSON_TYPE)
    assert (call.status, orjson.loads(call.content)["error"]["code"]) == (502, "engine_redirect")


async def test_below_engines_a_redirect_to_the_engine_stays_there() -> None:
    surface = Surface()
    surface.dispatcher.answer(FakeResponse(307, (("location", "/docs/?a=1"),)))
    call = await surface.post("/engines/org%2Fm/docs", b"{}", JSON_TYPE)
    assert (call.status, call.headers["location"]) == (307, "/engines/org%2Fm/docs/?a=1")
