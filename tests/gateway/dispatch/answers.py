"""Answers in one piece, given by an engine under the test's control and read by its client."""

from shared.protocol.messages import (
    ResponseHead,
    Trailers,
    Usage,
)
from tests.gateway.fleet.fleet import Client, EngineStream, FakeAgent, Fleet

HEAD = ResponseHead(200, (("content-type", "text/plain"),))
TRAILERS = Trailers(usage=Usage(3, 5))


async def read(client: Client) -> bytes:
    """Everything that is there now, consumed."""
    chunks = await client.response.next_chunks()
    for chunk in chunks:
        client.response.consumed(len(chunk))
    return b"".join(chunks)


def answer(stream: EngineStream, body: bytes = b"hello") -> None:
    stream.stream.send_head(HEAD)
    stream.stream.send_data(body)
    stream.stream.end(TRAILERS)


async def finish(fleet: Fleet, agent: FakeAgent, client: Client) -> None:
    """Answer the agent's oldest open stream and read the answer to its end."""
    answer(agent.open_streams[0])
    fleet.settle()
    assert await read(client) == b"hello"
    assert await read(client) == b""
