"""Agents whose tunnel is lost come back for their sessions, over real WebSockets on loopback."""

import asyncio
from pathlib import Path

import pytest

from gateway.domain.errors import StreamBroken
from shared.protocol import limits
from shared.protocol.errors import ErrorCode, TunnelClosed
from shared.protocol.messages import ResponseHead, Trailers
from shared.tunnel import DialledTunnel
from tests.gateway.fleet.agent_house import Gateway, Host, Running, eventually, running_gateway
from tests.gateway.fleet.fleet import FakeAgent, Fleet, deployment

pytestmark = pytest.mark.usefixtures("no_leaks")


async def serving_one_request(gateway: Gateway, host: Host) -> tuple[DialledTunnel, FakeAgent, Running]:
    tunnel, agent = await host.dial()
    agent.serve(deployment("m"))
    await eventually(lambda: gateway.registry.models())
    running = asyncio.ensure_future(gateway.dispatcher.run(Fleet().request()))
    await eventually(lambda: agent.streams)
    return tunnel, agent, running


async def test_an_agent_that_comes_back_goes_on_with_its_session(tmp_path: Path) -> None:
    async with running_gateway(tmp_path) as gateway:
        host = Host(gateway)
        tunnel, agent, running = await serving_one_request(gateway, host)
        agent.streams[0].stream.send_head(ResponseHead(200, ()))
        tunnel.abort(TunnelClosed("cut"))
        agent.streams[0].stream.send_data(b"said without a tunnel")
        agent.streams[0].stream.end(Trailers())
        newer, _ = await host.dial(tunnel)
        assert newer.resumed
        assert newer.welcome.generation > tunnel.welcome.generation
        response = await running
        assert await response.next_chunks() == [b"said without a tunnel"]
        assert await response.next_chunks() == []
        response.consumed(21)
        await gateway.all_exchanges_end()
        assert (gateway.count("accepted"), gateway.count("resumed")) == (1, 1)
        assert gateway.registry.agents_connected == 1


async def test_a_session_is_nobody_elses(tmp_path: Path) -> None:
    async with running_gateway(tmp_path) as gateway:
        tunnel, _, running = await serving_one_request(gateway, Host(gateway))
        stranger, _ = await Host(gateway, "gpu-2").dial(tunnel)
        assert not stranger.resumed
        assert gateway.registry.agents_connected == 2
        running.cancel()


async def test_a_restarted_agent_ends_the_session_it_had(tmp_path: Path) -> None:
    async with running_gateway(tmp_path) as gateway:
        host = Host(gateway)
        tunnel, _, running = await serving_one_request(gateway, host)
        tunnel.abort(TunnelClosed("killed"))
        _, again = await host.dial()
        again.serve(deployment("m"))
        await eventually(lambda: again.streams)
        again.streams[0].stream.send_head(ResponseHead(200, ()))
        response = await running
        assert response.attempts == 2
        response.abort()
        await gateway.cancel_is_confirmed(again)


async def test_a_session_that_does_not_come_back_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "RESUME_WINDOW_S", 0.3)
    async with running_gateway(tmp_path) as gateway:
        host = Host(gateway)
        tunnel, agent, running = await serving_one_request(gateway, host)
        agent.streams[0].stream.send_head(ResponseHead(200, ()))
        response = await running
        tunnel.abort(TunnelClosed("cut"))
        with pytest.raises(StreamBroken) as broken:
            await response.next_chunks()
        assert broken.value.code is ErrorCode.SESSION_LOST
        await eventually(lambda: not gateway.registry.agents_connected)
        newer, _ = await host.dial(tunnel)
        assert not newer.resumed
        response.abort()
        await gateway.all_exchanges_end()


async def test_a_session_that_lost_messages_is_not_gone_on_with(tmp_path: Path) -> None:
    async with running_gateway(tmp_path) as gateway:
        host = Host(gateway)
        tunnel, _, running = await serving_one_request(gateway, host)
        tunnel.abort(TunnelClosed("cut"))
        tunnel.endpoint.session.log.received += 5
        newer, again = await host.dial(tunnel)
        assert not newer.resumed
        again.serve(deployment("m"))
        await eventually(lambda: again.streams)
        running.cancel()
        await gateway.cancel_is_confirmed(again)


async def test_while_draining_an_agent_may_come_back_for_its_session(tmp_path: Path) -> None:
    async with running_gateway(tmp_path) as gateway:
        host = Host(gateway)
        tunnel, agent, running = await serving_one_request(gateway, host)
        gateway.agents.drain("restart", 30.0)
        tunnel.abort(TunnelClosed("cut"))
        newer, _ = await host.dial(tunnel)
        assert newer.resumed
        await eventually(lambda: agent.drained)
        agent.streams[0].stream.send_head(ResponseHead(200, ()))
        response = await running
        agent.streams[0].stream.end()
        assert await response.next_chunks() == []
        await gateway.all_exchanges_end()
