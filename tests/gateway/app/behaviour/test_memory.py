"""Requests that are over leave nothing behind that only a search for cycles would find: between two such
searches the gateway's memory would grow with every request."""

import gc
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from gateway.storage import Store
from shared.protocol.errors import ErrorCode
from shared.protocol.messages import ResponseHead, Trailers
from tests.gateway.app.test_app import running
from tests.gateway.dispatch.answers import answer, read_to_end
from tests.gateway.fleet.fleet import Fleet, deployment

EVENTS = ResponseHead(200, (("content-type", "text/event-stream"),))
TIMES = 10


@contextmanager
def cycles() -> Iterator[Counter[str]]:
    """Counts what of our own is found to be garbage, by type, once the block is over."""
    found: Counter[str] = Counter()
    gc.collect()
    gc.freeze()  # what is there by now is not looked at again: of a long run of tests that is much
    gc.disable()
    gc.set_debug(gc.DEBUG_SAVEALL)
    try:
        yield found
        gc.collect()
        types = [type(each) for each in gc.garbage]
        ours = [each for each in types if each.__module__.startswith(("gateway", "shared", "uvicorn"))]
        found.update(f"{each.__module__}.{each.__qualname__}" for each in ours)
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()


async def answered(fleet: Fleet) -> None:
    client = fleet.submit(fleet.request(streaming=True))
    stream = fleet.agents[0].open_streams[0].stream
    stream.send_head(EVENTS)
    stream.send_data(b'data: {"choices":[{"index":0,"delta":{"content":"a"}}]}\n\ndata: [DONE]\n\n')
    stream.end(Trailers())
    fleet.settle()
    await read_to_end(client)


async def in_one_piece(fleet: Fleet) -> None:
    client = fleet.submit(fleet.request(streaming=False))
    answer(fleet.agents[0].open_streams[0])
    fleet.settle()
    await read_to_end(client)


async def failed(fleet: Fleet) -> None:
    fleet.submit(fleet.request())
    fleet.agents[0].open_streams[0].stream.reset(ErrorCode.PROTOCOL_ERROR, "no")
    fleet.settle()


async def left(fleet: Fleet) -> None:
    fleet.submit(fleet.request()).cancel()
    fleet.settle()
    fleet.agents[0].open_streams[0].confirm()


@pytest.mark.parametrize("happens", [answered, in_one_piece, failed, left])
async def test_a_request_that_is_over_is_gone(happens: Callable[[Fleet], Awaitable[None]]) -> None:
    fleet = Fleet()
    fleet.connect("a", deployment())
    await happens(fleet)
    with cycles() as found:
        for _ in range(TIMES):
            await happens(fleet)
            fleet.settle()
            fleet.agents[0].streams.clear()
    assert not [name for name, count in found.items() if count >= TIMES]


async def test_a_clients_exchange_is_gone_with_its_answer(tmp_path: Path) -> None:
    with Store.open(tmp_path / "state") as store:
        async with running(store) as here:
            for _ in range(2):
                await here.client.get("/v1/models", headers={"authorization": "Bearer sk-nobody"})
            with cycles() as found:
                for _ in range(TIMES):
                    await here.client.get("/health")
    assert not [name for name, count in found.items() if count >= TIMES]
