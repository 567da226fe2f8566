"""What becomes of requests when the tunnel, the agent or the engine's memory gives out under them."""

import asyncio
from collections.abc import Callable

import pytest
import structlog

from agent.engines.backend import BackendUnreachable
from shared.protocol.errors import ErrorCode
from tests.agent.support.canned import until
from tests.agent.support.requests_in import TOKEN, agent_with, played, standing_still


@pytest.mark.parametrize("body", [b"{}", None])
async def test_a_lost_session_lets_go_of_the_engine(body: bytes | None) -> None:
    backend = played()
    backend.hold_body = body is None
    async with agent_with(backend) as here:
        here.ask(body)
        await backend.begun.wait()
        here.joined.cut()
        await until(lambda: here.registry.running == 0)
        assert backend.released == 1


@pytest.mark.parametrize("begun", [True, False])
async def test_what_is_cut_off_as_the_agent_ends_says_so(begun: bool) -> None:
    backend = played()
    if not begun:
        backend.hold_body = True
    async with agent_with(backend) as here:
        _, answer = here.ask()
        await backend.begun.wait()
        if begun:
            backend.response.pieces.put_nowait(TOKEN)
            await answer.until("data")
        here.runner.cut_off()
        assert await answer.until("reset") == (ErrorCode.DRAINING, "the agent ends")
        await answer.until("closed")
        assert (backend.released, here.registry.running) == (1, 0)


async def test_what_the_gateway_has_cancelled_stays_cancelled_when_the_agent_ends() -> None:
    backend = played()
    async with agent_with(backend) as here:
        stream, answer = here.ask()
        await backend.begun.wait()
        stream.reset(ErrorCode.CANCELLED)
        here.runner.cut_off()
        await answer.until("closed")
        here.runner.cut_off()


@pytest.mark.parametrize(
    ("status", "body", "slots"),
    [
        (500, b'{"error":{"message":"CUDA out of memory. Tried to allocate 2.00 GiB"}}', 4),
        (503, b'{"error":{"code":"out_of_memory"}}', 4),
        (500, b'{"error":"model requires more system memory (7.5 GiB) than is available (5.2 GiB)"}', 4),
        (500, b'{"error":{"message":"something else"}}', 8),
        (400, b'{"error":{"message":"what does out of memory mean?"}}', 8),
        (200, b"out of memory", 8),
    ],
)
async def test_an_engine_that_says_it_is_out_of_memory_gets_less(
    status: int, body: bytes, slots: int
) -> None:
    backend = played(slots=8)
    backend.response.status = status
    async with agent_with(backend) as here:
        _, answer = here.ask()
        for piece in (body[:20], body[20:], None):
            backend.response.pieces.put_nowait(piece)
        await answer.until("end")
        assert answer.body == body
        assert here.registry.levels("s") == {"e/m": slots}


async def test_an_engine_that_cannot_be_reached_is_told_once_and_once_when_it_can() -> None:
    backend = played()
    with structlog.testing.capture_logs() as logs:
        async with agent_with(backend) as here:
            backend.error = BackendUnreachable("no file descriptors")
            for _ in range(5):
                _, answer = here.ask()
                assert (await answer.until("reset"))[0] is ErrorCode.ENGINE_UNREACHABLE
                await answer.until("closed")
            backend.error = None
            for _ in range(2):
                backend.response.pieces.put_nowait(None)
                await here.ask()[1].until("end")
    assert [entry["event"] for entry in logs] == [
        "requests do not reach the engine",
        "requests reach the engine again",
    ]


async def test_an_agent_out_of_memory_fails_the_request_and_goes_on() -> None:
    backend = played()
    backend.error = MemoryError()  # type: ignore[assignment]
    async with agent_with(backend) as here:
        _, answer = here.ask()
        assert (await answer.until("reset"))[0] is ErrorCode.OVERLOADED
        backend.error = None
        backend.response.pieces.put_nowait(None)
        await here.ask()[1].until("end")


async def test_the_engine_works_on_while_the_tunnel_is_away_and_nothing_is_lost() -> None:
    backend = played()
    async with agent_with(backend) as here:
        _, answer = here.ask()
        backend.response.pieces.put_nowait(b"0;")
        await answer.until("data")
        here.joined.suspend()
        for number in range(1, 50):
            backend.response.pieces.put_nowait(b"%d;" % number)
        backend.response.pieces.put_nowait(None)
        await until(lambda: here.registry.running == 0)
        assert answer.body == b"0;"
        here.joined.resume()
        await answer.until("end")
        assert answer.body == b"".join(b"%d;" % number for number in range(50))


async def test_while_the_tunnel_is_away_the_engine_is_held_at_what_was_granted() -> None:
    backend = played()
    away = asyncio.Event()

    async def endless(take: Callable[[bytes], bool]) -> None:
        await away.wait()
        await backend.response.endless(take)

    backend.response.stream_to = endless  # type: ignore[method-assign]
    async with agent_with(backend) as here:
        _, answer = here.ask()
        await backend.begun.wait()
        here.joined.suspend()
        away.set()
        await standing_still(lambda: backend.response.sent_bytes)
        assert 0 < backend.response.sent_bytes < 400_000
        here.joined.cut()
        assert (await answer.until("reset"))[0] is ErrorCode.SESSION_LOST
        await until(lambda: here.registry.running == 0)
        assert backend.released == 1


async def test_a_request_cancelled_while_the_tunnel_is_away_frees_its_place_when_it_is_back() -> None:
    backend = played()
    async with agent_with(backend) as here:
        stream, answer = here.ask()
        await backend.begun.wait()
        here.joined.suspend()
        stream.reset(ErrorCode.CANCELLED)
        here.joined.resume()
        await answer.until("closed")
        assert (here.registry.running, backend.released) == (0, 1)
