"""Connections to an engine that are given up while they are made."""

import asyncio
import contextlib
import ssl
from collections.abc import Callable
from pathlib import Path

import pytest
import uvloop

from agent.engines.http.client.connection import EngineConnection
from agent.engines.http.client.connections import EngineConnector
from tests.support.leaks import Snapshot, assert_nothing_leaked
from tests.support.tls import make_certificate

TURNS = 16
"""Of the loop, within which a connection is there, but for what has to come back from the engine."""


async def _until_it_closes(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        await reader.read()
    writer.close()


async def _dial_and_give_up(context: ssl.SSLContext | None) -> None:
    troubles: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: troubles.append(context))
    server = await asyncio.start_server(_until_it_closes, "127.0.0.1", 0, ssl=context)
    port = server.sockets[0].getsockname()[1]
    scheme = "http" if context is None else "https"
    connector, before = EngineConnector(f"{scheme}://127.0.0.1:{port}", None, 30.0), Snapshot.take()
    for turns in (*range(TURNS), *range(TURNS)):
        dialling = asyncio.create_task(connector.dial(lambda: EngineConnection(lambda connection: None)))
        for _ in range(turns):
            await asyncio.sleep(0)
        dialling.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            (await dialling).transport.abort()
        (await connector.dial(lambda: EngineConnection(lambda connection: None))).transport.abort()
    await assert_nothing_leaked(before)
    server.close()
    assert not [each for each in troubles if "incoming" not in str(each)]


@pytest.mark.parametrize("tls", [False, True])
@pytest.mark.parametrize("loop", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_one_that_is_given_up_takes_no_other_s_descriptor(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    loop: Callable[[], asyncio.AbstractEventLoop],
    tls: bool,
) -> None:
    """A socket that was closed under its transport left that its number, which the next connection got."""
    context = None
    if tls:
        certificate, key = make_certificate(tmp_path)
        monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate, key)
    with asyncio.Runner(loop_factory=loop) as runner:
        runner.run(_dial_and_give_up(context))
