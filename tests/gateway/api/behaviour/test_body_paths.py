"""The path that takes an answer's whole events straight from the tunnel to the connection of its client."""

import asyncio
import os

from shared.speedups.body_path import STEP_BYTES
from tests.gateway.api.talks import Talk, events, told

WINDOW_BYTES = 128 * 1024


async def test_all_that_comes_at_once_behind_a_part_of_an_event_is_told() -> None:
    """Where that is all that the engine has credit for, nothing comes that could have it told later."""

    async def scenario(talk: Talk) -> None:
        await talk.begin()
        await talk.say(*events(3))
        first, *others = events(WINDOW_BYTES // len(events(1)[0]))
        await talk.say_together(first[:9], first[9:], *others)
        assert talk.engine.held_bytes < STEP_BYTES
        await talk.end()

    assert (await told(scenario, direct=True)).engine.received_bytes > WINDOW_BYTES


async def test_a_path_lets_go_of_its_socket_before_that_is_closed() -> None:
    async def scenario(talk: Talk) -> None:
        await talk.begin()
        await talk.say(*events(2))
        path = talk.engine.path
        assert path is not None
        socket = os.fstat(path.descriptor).st_ino
        talk.client.writer.transport.abort()
        async with asyncio.timeout(60):
            while path.descriptor >= 0:
                assert os.fstat(path.descriptor).st_ino == socket
                await asyncio.sleep(0)
        assert not path.open

    await told(scenario, direct=True)


async def test_a_connection_s_next_request_takes_the_socket_from_the_path_of_the_one_before() -> None:
    async def scenario(talk: Talk) -> None:
        await talk.begin()
        await talk.say(*events(2))
        path = talk.engine.path
        assert path is not None
        assert path.descriptor >= 0
        await talk.end()
        await talk.begin()
        assert path.descriptor == -1
        await talk.say(*events(2))
        assert talk.engine.path is not path
        await talk.end()

    await told(scenario, direct=True)
