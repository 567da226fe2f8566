"""The whole surface over raw ASGI, with a dispatcher that does what the test says."""

import orjson
import pytest

from gateway.domain.errors import (
    EngineError,
    ModelNotFound,
    NoDeployment,
    QueueFull,
    RequestError,
    StreamBroken,
)
from gateway.storage.errors import BadValue, StateBusy
from shared.protocol.errors import ErrorCode
from tests.gateway.api.support import (
    ASK,
    BEARER,
    CHAT,
    EVENTS,
    JSON_TYPE,
    STREAM,
    FakeResponse,
    Surface,
    error_in,
    json_response,
)


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


async def test_a_text_that_the_store_cannot_keep_is_the_clients_to_correct(
    surface: Surface, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refused(self: object, presented: str) -> None:
        raise BadValue("a value cannot be stored (no NUL)")

    monkeypatch.setattr("tests.gateway.api.support.FakeKeys.identify", refused)
    call = await surface.post(CHAT, ASK)
    assert (call.status, error_in(call.content)["code"]) == (400, "invalid_value")


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
