"""The tunnel on real sockets: bytes, WebSocket, session and clock together."""

import asyncio
import select
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import SimpleNamespace

import pytest

from shared.protocol import limits
from shared.protocol.errors import DialFailed, ErrorCode, HandshakeRejected, TunnelClosed
from shared.protocol.frames import FrameType, encode
from shared.protocol.messages import AgentState, AgentStatus, Drain, ResponseHead, Trailers, Usage
from shared.speedups import BodyPath, frame_messages
from shared.tunnel import AcceptedTunnel, DialledTunnel, accept, dial
from tests.support.identities import joining_agent
from tests.support.tunnels import Acceptor, Recorder, accepting, dial_with_token, request_head


@pytest.fixture(autouse=True, params=["transport", "gathered"])
def reading(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Tunnels are new for a second, in which their transports read, or not at all."""
    if request.param == "gathered":
        if not hasattr(select, "epoll"):
            pytest.skip("this system has no epoll")
        monkeypatch.setattr(accept, "NEW_S", 0.0)
    return str(request.param)


@asynccontextmanager
async def attached() -> AsyncIterator[tuple[Acceptor, Recorder, str, DialledTunnel]]:
    """A gateway's acceptor, the agent's listener, the gateway's URL and a tunnel that has joined."""
    acceptor, agent = Acceptor(), Recorder()
    async with accepting(acceptor) as url:
        tunnel = await dial_with_token(url, agent)
        await acceptor.listener.until("attached")
        yield acceptor, agent, url, tunnel


async def test_a_request_crosses_and_its_answer_comes_back() -> None:
    acceptor, agent = Acceptor(), Recorder()
    async with accepting(acceptor) as url:
        tunnel = await dial_with_token(url, agent)
        assert tunnel.welcome.certificate is not None
        tunnel.endpoint.send_state(AgentState(AgentStatus.READY))
        tunnel.endpoint.send_slots({"d1": 4})
        assert await acceptor.listener.until("slots") == {"d1": 4}
        assert acceptor.listener.names() == ["attached", "state", "slots"]

        client = Recorder()
        request = acceptor.tunnels[0].endpoint.open(request_head(), client)
        request.send_data(b"question")
        request.end()
        await agent.until("end")
        assert agent.body == b"question"
        answer = agent.streams[0]
        answer.send_head(ResponseHead(200, (("content-type", "text/plain"),)))
        answer.send_data(b"ans")
        answer.send_data(b"wer")
        trailers = Trailers(Usage(3, 2), first_byte_s=0.25)
        answer.end(trailers)
        await client.until("closed")
        assert client.body == b"answer"
        assert [name for name in client.names() if name != "data"] == ["head", "end", "closed"]
        assert ("end", trailers) in client.calls
        await agent.until("closed")
        tunnel.abort()


async def test_an_agent_that_is_no_longer_new_is_read_with_the_others(reading: str) -> None:
    async with attached() as (acceptor, _agent, _url, tunnel):
        gateway = acceptor.tunnels[0]
        assert gateway._gatherer is not None
        assert not len(gateway._gatherer)
        tunnel.endpoint.send_slots({"d1": 4})
        await acceptor.listener.until("slots")
        await asyncio.sleep(0)
        assert len(gateway._gatherer) == (reading == "gathered")
        gateway._gatherer.close()  # the gateway stops
        tunnel.endpoint.send_state(AgentState(AgentStatus.READY))
        await acceptor.listener.until("state")
        tunnel.abort()
        assert isinstance(await gateway.wait_closed(), TunnelClosed)


async def test_a_program_that_fails_at_what_came_loses_the_tunnel_alone() -> None:
    async with attached() as (acceptor, _agent, _url, tunnel):
        loop, reported = asyncio.get_running_loop(), list[dict[str, object]]()
        loop.set_exception_handler(lambda _, context: reported.append(context))
        acceptor.listener.on_slots = fail  # type: ignore[method-assign, assignment]
        tunnel.endpoint.send_slots({"d1": 4})
        assert await tunnel.wait_closed() is not None
        assert [str(each["exception"]) for each in reported] == ["a listener failed"]


def fail(*_: object) -> None:
    raise ValueError("a listener failed")


async def test_what_one_read_brings_is_written_to_its_client_at_once() -> None:
    async with attached() as (acceptor, agent, _url, tunnel):
        client, written = Recorder(), list[bytes]()
        gateway = acceptor.tunnels[0]
        request = gateway.endpoint.open(request_head(), client)
        await agent.until("open")
        agent.streams[0].send_head(ResponseHead(200, ()))
        await client.until("head")
        path = BodyPath(written.append, SimpleNamespace(write_paused=False))
        path.open = True
        request.take_path(path)
        event = b"x" * 5000 + b"\n\n"
        gateway._input_waits = False
        gateway.data_received(frame_messages([encode(FrameType.DATA, request.id, event)] * 4, b"mask" * 4))
        assert written == [b"%x\r\n%b\r\n" % (4 * len(event), event * 4)]
        tunnel.abort()


async def test_megabytes_cross_in_both_directions_within_credit() -> None:
    async with attached() as (acceptor, agent, _url, tunnel):
        client = Recorder()
        request = acceptor.tunnels[0].endpoint.open(request_head(streaming=False), client)
        upload = bytes(range(256)) * 8192
        writing = asyncio.create_task(write_all(request, client, upload))
        await agent.until("open")
        answer = agent.streams[0]
        reading = asyncio.create_task(consume_all(answer, agent, len(upload)))
        await asyncio.gather(writing, reading)
        assert agent.body == upload
        answer.send_head(ResponseHead(200, ()))
        writing = asyncio.create_task(write_all(answer, agent, upload[::-1]))
        reading = asyncio.create_task(consume_all(request, client, len(upload)))
        await asyncio.gather(writing, reading)
        await client.until("closed")
        assert client.body == upload[::-1]
        tunnel.abort()


async def write_all(stream: object, handler: Recorder, data: bytes) -> None:
    for start in range(0, len(data), 20_000):
        if not stream.send_data(data[start : start + 20_000]):  # type: ignore[attr-defined]
            handler.calls = [call for call in handler.calls if call[0] != "writable"]
            await handler.until("writable")
    stream.end()  # type: ignore[attr-defined]


async def consume_all(stream: object, handler: Recorder, size_bytes: int) -> None:
    consumed = 0
    async with asyncio.timeout(60):
        while consumed < size_bytes:
            if len(handler.body) == consumed:
                handler.changed.clear()
                await handler.changed.wait()
            stream.consumed(len(handler.body) - consumed)  # type: ignore[attr-defined]
            consumed = len(handler.body)


async def test_a_reader_that_stops_holds_no_more_than_was_granted() -> None:
    async with attached() as (acceptor, agent, _url, tunnel):
        gateway = acceptor.tunnels[0].endpoint
        stopped, reading = Recorder(), Recorder()
        gateway.open(request_head(), stopped).end()
        gateway.open(request_head(), reading).end()
        while len(agent.streams) < 2:
            agent.changed.clear()
            await agent.changed.wait()
        flood, trickle = agent.streams
        for stream in (flood, trickle):
            stream.send_head(ResponseHead(200, ()))
        flooding = asyncio.create_task(write_all(flood, agent, bytes(10 * limits.STREAM_WINDOW_BYTES)))
        async with asyncio.timeout(60):
            while len(stopped.body) < limits.STREAM_WINDOW_BYTES:
                stopped.changed.clear()
                await stopped.changed.wait()
        trickle.send_data(b"token")
        trickle.end()
        await reading.until("end")
        flooding.cancel()
        assert reading.body == b"token"
        assert len(stopped.body) == limits.STREAM_WINDOW_BYTES
        assert gateway.session.held_bytes == len(stopped.body) + len(reading.body)
        tunnel.abort()


async def test_a_refused_agent_is_told_why_and_when_to_come_back() -> None:
    acceptor = Acceptor(HandshakeRejected(ErrorCode.REVOKED, "this agent was revoked", 7.0))
    async with accepting(acceptor) as url:
        with pytest.raises(HandshakeRejected, match="this agent was revoked") as caught:
            await dial_with_token(url, Recorder())
        assert caught.value.code is ErrorCode.REVOKED
        assert caught.value.retry_after_s == 7.0
        await acceptor.all_gone.wait()


async def test_closing_the_session_tells_both_sides_and_every_stream() -> None:
    async with attached() as (acceptor, agent, _url, tunnel):
        client = Recorder()
        endpoint = acceptor.tunnels[0].endpoint
        endpoint.open(request_head(), client)
        endpoint.send_drain(Drain("upgrade", 1.0))
        assert (await agent.until("drain")).reason == "upgrade"
        endpoint.close(ErrorCode.DRAINING, "gateway stops")
        assert client.names() == ["reset", "closed"]
        assert client.calls[0][1][0] is ErrorCode.SESSION_LOST
        error = await tunnel.wait_closed()
        assert isinstance(error, TunnelClosed)
        assert error.code is ErrorCode.DRAINING
        assert agent.names()[-3:] == ["session_closed", "reset", "closed"]
        assert await acceptor.tunnels[0].wait_closed() is None


async def test_a_lost_connection_suspends_the_session_on_both_sides() -> None:
    async with attached() as (acceptor, agent, _url, tunnel):
        client = Recorder()
        acceptor.tunnels[0].endpoint.open(request_head(), client)
        await agent.until("open")
        tunnel.abort(TunnelClosed("cut"))
        error = await acceptor.tunnels[0].wait_closed()
        assert isinstance(error, TunnelClosed)
        assert isinstance(await acceptor.listener.until("session_suspended"), TunnelClosed)
        assert client.names() == ["suspended"]
        assert agent.names()[-2:] == ["suspended", "session_suspended"]
        acceptor.tunnels[0].endpoint.lost(error)
        assert client.names() == ["suspended", "reset", "closed"]
        assert await acceptor.listener.until("session_closed") is error


async def test_a_session_goes_on_over_another_tunnel_byte_for_byte() -> None:
    async with attached() as (acceptor, agent, url, tunnel):
        client = Recorder()
        request = acceptor.tunnels[0].endpoint.open(request_head(), client)
        request.send_data(b"question")
        request.end()
        await agent.until("end")
        answer = agent.streams[0]
        answer.send_head(ResponseHead(200, ()))
        said = b""
        for number in range(30):
            piece = bytes([number]) * 700
            said += piece
            answer.send_data(piece)
            if number % 3 == 0:  # cut it before, while or after the piece leaves
                if number % 2:
                    await asyncio.sleep(0)
                tunnel.abort(TunnelClosed("cut"))
                tunnel = await dial_with_token(url, Recorder(), lost=tunnel)
                assert tunnel.resumed
        answer.end(Trailers(Usage(1, 2)))
        await client.until("closed")
        assert client.body == said
        assert [name for name in client.names() if name in ("head", "end", "reset")] == ["head", "end"]
        assert client.names().count("suspended") == client.names().count("resumed") == 10
        await agent.until("closed")
        assert not tunnel.endpoint.streams
        assert len(acceptor.tunnels) == 11
        tunnel.abort()


async def test_a_newer_tunnel_takes_the_session_from_one_that_only_seems_alive() -> None:
    async with attached() as (acceptor, agent, url, tunnel):
        client = Recorder()
        acceptor.tunnels[0].endpoint.open(request_head(), client)
        await agent.until("open")
        there = acceptor.tunnels[0]
        tunnel.endpoint.suspend(TunnelClosed("the network is another one"))
        newer = await dial_with_token(url, Recorder(), lost=tunnel)
        assert newer.resumed
        error = await there.wait_closed()
        assert isinstance(error, TunnelClosed)
        assert error.code is ErrorCode.REPLACED
        answer = agent.streams[0]
        answer.send_head(ResponseHead(200, ()))
        answer.end()
        await client.until("end")
        newer.abort()


async def test_an_agent_whose_session_is_gone_gets_a_new_one() -> None:
    async with attached() as (acceptor, _agent, url, tunnel):
        tunnel.abort(TunnelClosed("cut"))
        acceptor.forgets = True
        newer = await dial_with_token(url, Recorder(), lost=tunnel)
        assert not newer.resumed
        assert newer.endpoint is not tunnel.endpoint
        assert not newer.endpoint.session.log.received
        newer.abort()


async def test_what_is_done_without_a_tunnel_takes_effect_on_the_next() -> None:
    async with attached() as (acceptor, agent, url, tunnel):
        client, other = Recorder(), Recorder()
        endpoint = acceptor.tunnels[0].endpoint
        request = endpoint.open(request_head(), client)
        await agent.until("open")
        tunnel.abort(TunnelClosed("cut"))
        await acceptor.listener.until("session_suspended")
        request.reset(ErrorCode.CANCELLED, "nobody wants it")
        endpoint.open(request_head(), other)
        tunnel.endpoint.send_slots({"d1": 1})
        tunnel.endpoint.send_slots({"d1": 7})
        newer = await dial_with_token(url, Recorder(), lost=tunnel)
        assert await agent.until("reset") == (ErrorCode.CANCELLED, "nobody wants it")
        assert await acceptor.listener.until("slots") == {"d1": 7}
        assert len(agent.streams) == 2
        agent.streams[0].reset(ErrorCode.CANCELLED)
        await client.until("closed")
        newer.abort()


async def test_a_broken_frame_after_authentication_ends_the_session_with_its_name() -> None:
    async with attached() as (acceptor, _agent, _url, tunnel):
        tunnel._send_messages([b"\xff rubbish"])
        error = await tunnel.wait_closed()
        assert isinstance(error, TunnelClosed)
        assert error.code is ErrorCode.PROTOCOL_ERROR
        assert "header" in str(error) or "unknown frame" in str(error)
        assert await acceptor.listener.until("session_closed") is not None


async def test_dialling_nobody_fails_with_a_reason() -> None:
    with pytest.raises(DialFailed, match=r"127\.0\.0\.1"):
        await dial_with_token("ws://127.0.0.1:9/tunnel", Recorder())


@pytest.mark.parametrize(
    ("url", "proxy"),
    [
        ("ws://a..b/tunnel", None),
        (f"ws://{'a' * 64}.example/tunnel", None),
        ("ws://x/tunnel", "ftp://me:secret@127.0.0.1:9"),
        ("ws://x/tunnel", "http://me:secret@"),
        ("ws://x/tunnel", "http://me:secret@127.0.0.1:70000"),
        ("ws://x/tunnel", "http://me:secret@127.0.0.1/path"),
        ("ws://x/tunnel", "http://me:secret@a..b:9"),
        ("ws://x/tunnel", "http://me:%ffsecret@127.0.0.1:9"),
    ],
)
async def test_hosts_and_proxies_that_cannot_be_are_dialled_in_vain_and_passwords_not_repeated(
    url: str, proxy: str | None
) -> None:
    loop = asyncio.get_running_loop()
    with pytest.raises(DialFailed) as failed:
        await dial(url, handshake=joining_agent(), listener=Recorder(), clock=loop.time, proxy=proxy)
    assert "secret" not in str(failed.value)


async def test_a_silent_peer_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "HEARTBEAT_S", 0.1)
    monkeypatch.setattr(limits, "DEAD_AFTER_S", 0.3)
    async with attached() as (acceptor, _agent, _url, tunnel):
        there: AcceptedTunnel = acceptor.tunnels[0]
        assert there._transport is not None
        there._transport.pause_reading()
        there.endpoint.session.heartbeat._ping_at = float("inf")
        there.endpoint.session.heartbeat.heard_at = float("inf")
        error = await asyncio.wait_for(tunnel.wait_closed(), 60)
        assert "nothing heard" in str(error)
