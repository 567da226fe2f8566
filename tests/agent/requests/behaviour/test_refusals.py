"""An engine's refusal reaches the gateway with what it means for the engine's slots."""

import pytest

from agent.engines.backend import BackendTimeout
from shared.protocol.errors import ErrorCode
from shared.protocol.messages import Refusal
from tests.agent.support.requests_in import agent_with, played

BUSY = b'{"error":{"message":"server busy"}}'
JSON = (("content-type", "application/json"),)


@pytest.mark.parametrize(
    ("status", "said", "refusal"),
    [
        (429, BUSY, Refusal.BUSY),
        (503, BUSY, Refusal.BUSY),
        (429, b"", Refusal.BUSY),
        (503, b"", None),
        (429, b"insufficient_quota", Refusal.REQUEST),
        (500, BUSY, None),
    ],
)
async def test_the_head_of_a_refusal_says_what_its_body_means(
    status: int, said: bytes, refusal: Refusal | None
) -> None:
    backend = played(slots=4)
    backend.response.status, backend.response.headers = status, JSON
    for piece in (said[:5], said[5:], None):
        if piece is None or piece:
            backend.response.pieces.put_nowait(piece)
    async with agent_with(backend) as here:
        _, answer = here.ask()
        head = await answer.until("head")
        await answer.until("end")
        assert (head.status, head.refusal) == (status, refusal)
        assert answer.body == said
        assert here.registry.levels("s") == {"e/m": 1 if refusal is Refusal.BUSY else 4}


async def test_a_long_refusal_goes_on_as_any_answer_does() -> None:
    backend = played()
    backend.response.status, backend.response.headers = 503, JSON
    pieces = [b"x" * 3000, b"y" * 3000, b"z" * 100_000]
    async with agent_with(backend) as here:
        _, answer = here.ask()
        for piece in (*pieces, None):
            backend.response.pieces.put_nowait(piece)
        head = await answer.until("head")
        await answer.until("end")
    assert head.refusal is None
    assert answer.body == b"".join(pieces)


async def test_a_refusal_whose_body_does_not_come_is_a_failure() -> None:
    backend = played()
    backend.response.status = 503
    backend.response.pieces.put_nowait(b"too")
    backend.response.pieces.put_nowait(BackendTimeout("silent"))
    async with agent_with(backend) as here:
        _, answer = here.ask()
        assert await answer.until("reset") == (ErrorCode.ENGINE_TIMEOUT, "silent")
        assert "head" not in answer.names()


async def test_a_refused_request_that_its_gateway_lets_go_lowers_the_slots_all_the_same() -> None:
    backend = played(slots=4)
    backend.response.status = 429
    backend.response.pieces.put_nowait(b"x" * 5000)
    async with agent_with(backend) as here:
        stream, answer = here.ask()
        await answer.until("head")
        stream.reset(ErrorCode.CANCELLED)
        await answer.until("closed")
        assert here.registry.levels("s") == {"e/m": 1}
