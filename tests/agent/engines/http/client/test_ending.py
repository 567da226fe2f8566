"""What an engine's connection that ends leaves of an answer."""

import asyncio
import socket

from agent.engines.http.engine_client import EngineClient
from agent.engines.settings import EngineSettings
from tests.agent.engines.http.client.test_call import Slow, ask


async def test_an_answer_to_half_a_request_is_read_though_the_rest_of_the_request_meets_a_reset() -> None:
    loop = asyncio.get_running_loop()
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.setblocking(False)
        client = EngineClient(EngineSettings(url=f"http://127.0.0.1:{listening.getsockname()[1]}"))
        body = Slow(b"end")
        asking = asyncio.ensure_future(ask(client, sending=body, length=8))
        refusing, _ = await loop.sock_accept(listening)
        await loop.sock_recv(refusing, 1)
        refusing.sendall(b"HTTP/1.1 413 Too Large\r\ncontent-length: 3\r\n\r\nbig")
        refusing.close()  # what it has not read makes a reset of that
        body.let.set()  # the rest is written before the answer is read
        assert await asking == b"big"
        await client.close()
