"""Answers longer than their clients read: what engines write of them, and what clients take."""

from gateway.domain.request import Principal
from shared.protocol.limits import MIB
from shared.protocol.messages import ResponseHead, Trailers
from tests.gateway.dispatch.answers import read
from tests.gateway.fleet.fleet import Client, EngineStream, Fleet

PLAIN = ResponseHead(200, (("content-type", "text/plain"),))
PIECE = bytes(range(256)) * 16
LONG = 3 * MIB // len(PIECE)
"""The pieces of a long answer."""
OTHER = Principal("k2", "other", "others")


def writes(fleet: Fleet, engine: EngineStream, pieces: int) -> int:
    """The engine writes until it has written so many pieces or has to wait; how many it has written."""
    for number in range(pieces):
        if not engine.ready:
            return number
        engine.ready = engine.stream.send_data(PIECE)
        fleet.settle()
    return pieces


def begins(fleet: Fleet, engine: EngineStream, pieces: int = LONG) -> int:
    """The head, and then as :func:`writes`."""
    engine.stream.send_head(PLAIN)
    return writes(fleet, engine, pieces)


def writes_all(fleet: Fleet, engine: EngineStream, pieces: int = LONG) -> None:
    assert begins(fleet, engine, pieces) == pieces
    engine.stream.end(Trailers())
    fleet.settle()


async def reads(client: Client, size_bytes: int) -> int:
    """What the client takes: pieces until it has so much."""
    taken = 0
    while taken < size_bytes:
        taken += len(await read(client))
    return taken


def wait(fleet: Fleet, seconds: float) -> None:
    for _ in range(int(seconds)):
        fleet.advance(1.0)
