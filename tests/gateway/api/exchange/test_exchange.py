"""How bodies are read, and what becomes of a request whose client leaves."""

import asyncio
import sys
from contextlib import closing

import pytest

from gateway.api.exchange.exchange import HttpSettings
from gateway.api.exchange.inbound import BodyLimits
from gateway.domain.errors import (
    Overloaded,
    QueueFull,
)
from gateway.domain.request import Request
from gateway.pipeline.bodies.reader import BodyReader
from tests.gateway.api.calls import Call
from tests.gateway.api.support import (
    ASK,
    BEARER,
    CHAT,
    EVENTS,
    MIB,
    STREAM,
    FakeResponse,
    Surface,
    error_in,
    json_response,
    whole_body,
)

FORM_TYPE = (b"content-type", b"multipart/form-data; boundary=XX")


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
    async with asyncio.timeout(60):
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


def half_an_upload(surface: Surface) -> Call:
    """More of a body than is read before dispatch, to an engine that reads all of it."""

    async def serve(request: Request) -> FakeResponse:
        await whole_body(request)
        return json_response()

    surface.dispatcher.serve = serve
    call = surface.ask("POST", "/engines/m/upload", BEARER, (b"transfer-encoding", b"chunked"))
    call.body(b"x" * (MIB + 1), more=True)
    return call


async def test_a_body_that_stops_coming_fails_its_upload() -> None:
    call = half_an_upload(Surface(HttpSettings(BodyLimits(grace_s=0.01))))
    assert (await call.done()).status == 408


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
    call = half_an_upload(surface)
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
