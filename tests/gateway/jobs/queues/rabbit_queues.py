"""Queues of one test on a RabbitMQ server, removed afterwards."""

import contextlib
import socket
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import aio_pika
import pytest
from aio_pika.abc import AbstractChannel

PORT = 5672
URL = f"amqp://guest:guest@127.0.0.1:{PORT}/"
LIMIT_S = 120.0


@asynccontextmanager
async def rabbit_queues(*names: str) -> AsyncIterator[tuple[AbstractChannel, dict[str, str]]]:
    """A channel, and the real names of the queues ``names``, which are there, and of ``dead``, which is not.
    Skips the test where there is no server."""
    try:
        socket.create_connection(("127.0.0.1", PORT), 1.0).close()
    except OSError:
        pytest.skip(f"no RabbitMQ server answers on port {PORT}")
    real = {name: f"trunkline-test-{uuid.uuid4().hex}-{name}" for name in (*names, "dead")}
    connection = await aio_pika.connect(URL, timeout=LIMIT_S)
    async with connection:
        channel = await connection.channel()
        for name in names:
            await channel.declare_queue(real[name], durable=True)
        try:
            yield channel, real
        finally:
            for name in real.values():
                cleaning = await connection.channel()
                with contextlib.suppress(aio_pika.exceptions.ChannelClosed):
                    await cleaning.queue_delete(name)
                if not cleaning.is_closed:
                    await cleaning.close()
