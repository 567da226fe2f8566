"""A stream through the engine and back, at the pace of the slower side, and every way it can end."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import orjson
import pytest

from agent.engines.backend import BackendFailed, BackendTimeout, BackendUnreachable
from agent.requests.run import RequestRun
from shared.protocol.errors import ErrorCode
from shared.protocol.limits import STREAM_WINDOW_BYTES
from shared.protocol.messages import Trailers, Usage, UsageMode
from tests.agent.support.canned import until
from tests.agent.support.http_backend import backend
from tests.agent.support.requests_in import TOKEN, Set, agent_with, played, standing_still
from tests.support.scripted_engine import Fault, ScriptedEngine

FINAL = b'data: {"choices":[],"usage":{"prompt_tokens":7,"completion_tokens":3}}\n\n'


async def test_a_request_goes_through_and_its_answer_back() -> None:
    backend = played()
    async with agent_with(backend) as here:
        _, answer = here.ask(b'{"x":1}')
        await backend.begun.wait()
        here.clock.advance(0.5)
        backend.response.pieces.put_nowait(TOKEN)
        await answer.until("data")
        here.clock.advance(1.5)
        backend.response.pieces.put_nowait(None)
        trailers = await answer.until("end")
    assert backend.bodies == [b'{"x":1}']
    assert answer.body == TOKEN
    assert trailers == Trailers(None, 0.0, 0.5, 2.0)
    assert answer.names()[0] == "head"
    assert backend.released == 1


async def test_a_request_that_fails_to_begin_keeps_no_other_of_its_turn_from_its_engine(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    begin, begun = RequestRun.begin, list[RequestRun]()

    def begin_or_fail(run: RequestRun) -> None:
        begun.append(run)
        if len(begun) == 1:
            raise ValueError("the first")
        begin(run)

    failures: list[str] = []
    asyncio.get_running_loop().set_exception_handler(
        lambda loop, context: failures.append(str(context["exception"]))
    )
    monkeypatch.setattr(RequestRun, "begin", begin_or_fail)
    backend = played()
    backend.response.pieces.put_nowait(None)
    async with agent_with(backend) as here:
        here.ask()
        _, answer = here.ask()
        await answer.until("end")
    assert (len(begun), failures) == (2, ["the first"])


async def test_usage_goes_into_the_trailers_and_out_of_the_answer_when_nobody_asked() -> None:
    for mode, expected in ((UsageMode.STRIP, TOKEN), (UsageMode.KEEP, TOKEN + FINAL)):
        backend = played()
        async with agent_with(backend) as here:
            _, answer = here.ask(usage=mode)
            for piece in (TOKEN, FINAL[:30], FINAL[30:], None):
                backend.response.pieces.put_nowait(piece)
            trailers = await answer.until("end")
        assert answer.body == expected
        assert trailers.usage == Usage(7, 3)


async def test_a_response_that_may_get_shorter_promises_no_length() -> None:
    backend = played()
    backend.response.headers = (("content-type", "text/event-stream"), ("content-length", "9"))
    backend.response.pieces.put_nowait(None)
    async with agent_with(backend) as here:
        _, answer = here.ask(usage=UsageMode.STRIP)
        head = await answer.until("head")
    assert head.headers == (("content-type", "text/event-stream"),)


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (BackendUnreachable("refused"), ErrorCode.ENGINE_UNREACHABLE),
        (BackendFailed("died"), ErrorCode.ENGINE_FAILED),
        (BackendTimeout("silent"), ErrorCode.ENGINE_TIMEOUT),
    ],
)
async def test_an_engines_error_becomes_the_code_of_a_reset(error: Any, code: ErrorCode) -> None:
    backend = played()
    backend.error = error
    async with agent_with(backend) as here:
        _, answer = here.ask()
        assert await answer.until("reset") == (code, error.reason)
        await answer.until("closed")
        assert here.registry.running == 0


async def test_an_engine_that_dies_in_its_answer_resets_after_what_it_said() -> None:
    backend = played()
    backend.response.pieces.put_nowait(TOKEN)
    async with agent_with(backend) as here:
        _, answer = here.ask()
        await answer.until("data")
        backend.response.pieces.put_nowait(BackendFailed("died"))
        assert await answer.until("reset") == (ErrorCode.ENGINE_FAILED, "died")
        assert answer.body == TOKEN


async def test_more_than_the_slots_is_refused_at_once() -> None:
    backend = played(slots=1)
    async with agent_with(backend) as here:
        here.ask()
        await backend.begun.wait()
        _, answer = here.ask()
        code, reason = await answer.until("reset")
        assert (code, reason) == (ErrorCode.REFUSED, "all 1 slots are taken")


async def test_the_place_is_free_when_the_gateway_hears_of_the_end() -> None:
    backend = played(slots=1)
    async with agent_with(backend) as here:
        for _ in range(20):
            backend.response.pieces.put_nowait(None)
            _, answer = here.ask()
            await answer.until("closed")
            assert "reset" not in answer.names()


async def test_a_cancelled_request_is_confirmed_after_the_engine_let_go() -> None:
    backend = played()
    async with agent_with(backend) as here:
        stream, answer = here.ask()
        await backend.begun.wait()
        stream.reset(ErrorCode.CANCELLED)
        await answer.until("closed")
        assert backend.released == 1
        assert here.registry.running == 0


async def test_a_request_cancelled_before_its_task_began_is_confirmed_too() -> None:
    backend = played()
    async with agent_with(backend) as here:
        stream, answer = here.ask(body=None)
        await until(lambda: here.registry.running)
        next(iter(here.joined.agent.streams.values())).handler.on_reset(ErrorCode.CANCELLED, "")
        await answer.until("closed")
        assert here.registry.running == 0
        assert not backend.begun.is_set()
        stream.reset(ErrorCode.CANCELLED)


async def test_a_request_out_of_time_is_reset() -> None:
    backend = played()
    async with agent_with(backend) as here:
        _, answer = here.ask(deadline_s=0.01)
        assert (await answer.until("reset"))[0] is ErrorCode.DEADLINE
        assert backend.released == 1


async def test_an_unforeseen_error_ends_the_request_and_nothing_else() -> None:
    backend = played()
    backend.response.status = 99_999_999  # no such status can be sent
    backend.response.headers = None  # type: ignore[assignment]
    async with agent_with(backend) as here:
        _, answer = here.ask()
        assert (await answer.until("reset"))[0] is ErrorCode.INTERNAL
        assert here.registry.running == 0


async def test_an_answer_nobody_reads_holds_the_engine_and_only_what_was_granted() -> None:
    backend = played()
    backend.response.stream_to = backend.response.endless  # type: ignore[method-assign]
    async with agent_with(backend) as here:
        stream, answer = here.ask()
        await standing_still(lambda: backend.response.sent_bytes)
        held = backend.response.sent_bytes
        assert held < 400_000
        stream.consumed(len(answer.body))
        await until(lambda: backend.response.sent_bytes > held)
        stream.reset(ErrorCode.CANCELLED)
        await answer.until("closed")


@pytest.mark.parametrize("usage", [UsageMode.KEEP, UsageMode.STRIP])
async def test_a_place_is_free_when_the_engine_has_said_all_though_nobody_reads_it(usage: UsageMode) -> None:
    backend = played()

    async def stream_to(take: Callable[[bytes], bool]) -> None:
        """The whole answer comes in one turn, with its end."""
        assert not take(b": " + b"x" * (STREAM_WINDOW_BYTES + 60_000) + b"\n\n")

    backend.response.stream_to = stream_to  # type: ignore[method-assign]
    async with agent_with(backend) as here:
        stream, answer = here.ask(usage=usage)
        await until(lambda: backend.released == 1)
        await until(lambda: here.registry.running == 0)
        assert "end" not in answer.names(), "it waits behind what is not read"
        await until(lambda: len(answer.body) == STREAM_WINDOW_BYTES)
        stream.consumed(STREAM_WINDOW_BYTES)
        await answer.until("end")


@pytest.mark.parametrize("read", [True, False])
async def test_what_was_held_back_leaves_once_it_may_or_not_at_all(read: bool) -> None:
    backend, last = played(), b'data: {"held back'
    comment = b": " + b"x" * (STREAM_WINDOW_BYTES + 60_000) + b"\n\n"

    async def stream_to(take: Callable[[bytes], bool]) -> None:
        assert not take(comment)
        assert take(last)

    backend.response.stream_to = stream_to  # type: ignore[method-assign]
    async with agent_with(backend) as here:
        stream, answer = here.ask(usage=UsageMode.STRIP)
        await until(lambda: backend.released == 1)
        assert here.registry.running == 1
        if not read:
            stream.reset(ErrorCode.CANCELLED)
            await answer.until("closed")
        else:
            await until(lambda: len(answer.body) == STREAM_WINDOW_BYTES)
            stream.consumed(STREAM_WINDOW_BYTES)
            await answer.until("end")
            assert answer.body == comment + last
        assert here.registry.running == 0


async def test_a_body_is_credited_only_as_the_engine_takes_it() -> None:
    backend = played()
    backend.hold_body = True
    async with agent_with(backend) as here:
        stream, answer = here.ask(body=None)
        await until(lambda: not stream.send_data(b"x" * 16_000))
        await backend.begun.wait()
        await standing_still(lambda: here.joined.agent.session.held_bytes)
        assert 200_000 < here.joined.agent.session.held_bytes < 300_000
        backend.response.pieces.put_nowait(None)
        await answer.until("end")
        await until(lambda: here.joined.agent.session.held_bytes == 0)


@asynccontextmanager
async def engine_behind() -> AsyncIterator[tuple[ScriptedEngine, Set]]:
    async with (
        ScriptedEngine(models=("m",)) as engine,
        backend(engine.url, slots=64) as made,
        agent_with(made) as here,
    ):
        yield engine, here


def chat(**script: Any) -> bytes:
    options = {"stream": True, "stream_options": {"include_usage": True}}
    return orjson.dumps(
        {"model": "m", "messages": [{"role": "user", "content": "a b"}], "script": script, **options}
    )


async def test_a_real_engine_streams_through_with_its_usage(no_leaks: None) -> None:
    async with engine_behind() as (_, here):
        _, answer = here.ask(chat(tokens=5), usage=UsageMode.STRIP)
        trailers = await answer.until("end")
        assert trailers.usage == Usage(2, 5)
        assert b'"usage":{' not in answer.body
        assert answer.body.endswith(b"data: [DONE]\n\n")


async def test_a_real_engines_every_fault_has_its_code(no_leaks: None) -> None:
    async with engine_behind() as (engine, here):
        for fault in (Fault.DIE, Fault.CLOSE, Fault.GARBAGE):
            for after in (0, 2):
                _, answer = here.ask(chat(tokens=4, fault=fault, after=after))
                assert (await answer.until("reset"))[0] is ErrorCode.ENGINE_FAILED
        _, answer = here.ask(chat(status=429, retry_after="3"))
        head = await answer.until("head")
        assert (head.status, dict(head.headers)["retry-after"]) == (429, "3")
        await answer.until("end")
        await until(lambda: engine.stats.running == 0)


async def test_cancelling_frees_a_real_engine(no_leaks: None) -> None:
    async with engine_behind() as (engine, here):
        streams = [here.ask(chat(tokens=1000, tokens_per_s=100)) for _ in range(20)]
        for stream, answer in streams:
            await answer.until("data")
            stream.reset(ErrorCode.CANCELLED)
        for _, answer in streams:
            await answer.until("closed")
        await until(lambda: engine.stats.cancelled == 20)
        assert here.registry.running == 0


async def test_a_big_upload_reaches_a_real_engine_whole(no_leaks: None) -> None:
    async with engine_behind() as (engine, here):
        stream, answer = here.ask(
            None, path="/upload", headers=(("content-type", "application/octet-stream"),)
        )
        for _ in range(500):
            if not stream.send_data(b"x" * 16_000):
                answer.calls[:] = [call for call in answer.calls if call[0] != "writable"]
                await answer.until("writable")
        stream.end()
        await answer.until("end")
        assert orjson.loads(answer.body)["bytes"] == 8_000_000
        assert engine.stats.received_bytes == 8_000_000


ROUTERS = b'{"detail":"Not Found"}'


@pytest.mark.parametrize("cut", [0, 5, len(ROUTERS)])
async def test_a_path_that_the_engine_lacks_is_told_with_the_head_and_in_the_state(cut: int) -> None:
    backend = played()
    backend.response.status, backend.response.headers = 404, (("content-type", "application/json"),)
    for piece in (ROUTERS[:cut], ROUTERS[cut:], None):
        backend.response.pieces.put_nowait(piece)
    async with agent_with(backend) as here:
        _, answer = here.ask(path="/v1/rerank")
        head = await answer.until("head")
        await answer.until("closed")
        assert (head.status, head.lacks_path, answer.body) == (404, True, ROUTERS)
        assert [each.lacks for each in here.registry.state().deployments] == [("rerank",)]


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/rerank", b'{"error":{"message":"The model `m` does not exist."}}'),
        ("/v1/rerank", b"Not Found" + b" " * 8000),
        ("/history/7", ROUTERS),
    ],
)
async def test_a_404_about_anything_else_passes_as_it_is(path: str, body: bytes) -> None:
    backend = played()
    backend.response.status, backend.response.headers = 404, (("content-type", "application/json"),)
    for piece in (body[:7], body[7:], None):
        backend.response.pieces.put_nowait(piece)
    async with agent_with(backend) as here:
        _, answer = here.ask(path=path)
        head = await answer.until("head")
        await answer.until("closed")
        assert (head.status, head.lacks_path, answer.body) == (404, False, body)
        assert [each.lacks for each in here.registry.state().deployments] == [()]


# --- Refusals ---
