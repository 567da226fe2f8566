"""Answers given by an engine under the test's control and read by its client, and what is left in the end."""

from gateway.dispatch.dispatcher import DispatchSettings
from shared.protocol.messages import (
    ResponseHead,
    Trailers,
    Usage,
)
from tests.gateway.fleet.fleet import Client, EngineStream, FakeAgent, Fleet, deployment

HEAD = ResponseHead(200, (("content-type", "text/plain"),))
TRAILERS = Trailers(usage=Usage(3, 5))


def fleet_of(*names: str, slots: int = 1, **settings: float) -> tuple[Fleet, list[FakeAgent]]:
    """Agents of these names, each with the model on a built-in route and on another."""
    fleet = Fleet(settings=DispatchSettings(slow_start_s=0, **settings))  # type: ignore[arg-type]
    return fleet, [fleet.connect(name, deployment(slots=slots, routes=("chat", "any"))) for name in names]


async def read(client: Client) -> bytes:
    """Everything that is there now, consumed."""
    chunks = await client.response.next_chunks()
    for chunk in chunks:
        client.response.consumed(len(chunk))
    return b"".join(chunks)


async def read_to_end(client: Client) -> bytes:
    """The rest of the answer, consumed. Raises what the reader is told instead of an end."""
    got = b""
    while piece := await read(client):
        got += piece
    client.response.abort()
    return got


def answer(stream: EngineStream, body: bytes = b"hello") -> None:
    stream.stream.send_head(HEAD)
    stream.stream.send_data(body)
    stream.stream.end(TRAILERS)


async def finish(fleet: Fleet, agent: FakeAgent, client: Client) -> None:
    """Answer the agent's oldest open stream and read the answer to its end."""
    answer(agent.open_streams[0])
    fleet.settle()
    assert await read_to_end(client) == b"hello"
    fleet.settle()


def let_go(fleet: Fleet) -> None:
    """Every engine lets go of the requests that are still open at it."""
    for agent in fleet.agents:
        if not agent.endpoint.closed:
            for stream in agent.open_streams:
                stream.confirm()


def quiet(fleet: Fleet) -> None:
    """Engines let go of what is open, and nothing is left."""
    let_go(fleet)
    fleet.advance(2.0)
    fleet.assert_quiet()
    assert fleet.dispatcher.records.taken_bytes == 0


def leave(fleet: Fleet, *clients: Client) -> None:
    """The clients go, answered or not, engines let go of what they wrote for them, and nothing is left."""
    for client in clients:
        if client.settled:
            client.response.abort()
        else:
            client.cancel()
    fleet.settle()
    let_go(fleet)
    fleet.assert_quiet()
