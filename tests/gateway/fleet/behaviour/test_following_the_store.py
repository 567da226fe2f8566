"""Sessions follow what any process writes of their agents into the store."""

import asyncio
import time
from pathlib import Path

import pytest

from gateway.domain.errors import StreamBroken
from gateway.fleet.endpoint import AgentEndpointSettings
from gateway.storage import Store
from shared.protocol.errors import ErrorCode, HandshakeRejected, TunnelClosed
from shared.protocol.messages import ResponseHead
from tests.gateway.fleet.agent_house import Host, eventually, running_gateway
from tests.gateway.fleet.fleet import Fleet, deployment

pytestmark = pytest.mark.usefixtures("no_leaks")

SELDOM_ALL = AgentEndpointSettings(revocation_tick_s=3600.0, seen_tick_s=3600.0, renewal_tick_s=3600.0)


async def test_sessions_follow_the_store_as_soon_as_its_thread_finds_a_change(tmp_path: Path) -> None:
    async with running_gateway(tmp_path, SELDOM_ALL) as gateway:
        gateway.store.changes.start_polling()
        tunnel, _ = await Host(gateway).dial()
        with Store.open(tmp_path) as elsewhere:
            elsewhere.agents.revoke("gpu-1", "stolen", time.time())
        async with asyncio.timeout(60):
            error = await tunnel.wait_closed()
        assert isinstance(error, TunnelClosed)
        assert error.code is ErrorCode.REVOKED


async def test_no_thread_is_asked_for_changes_while_there_are_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running_gateway(tmp_path, SELDOM_ALL) as gateway:
        endpoint, asked, follow = gateway.agents, 0, gateway.agents.follow_store

        async def counted() -> None:
            nonlocal asked
            asked += 1
            await follow()

        monkeypatch.setattr(endpoint, "follow_store", counted)
        await Host(gateway).dial()
        await endpoint._look_after_sessions()
        before = asked
        for _ in range(3):
            await endpoint._look_after_sessions()
        assert asked == before
        gateway.store.agents.hold("gpu-1", time.time(), held=True)
        await endpoint._look_after_sessions()
        assert asked == before + 1


async def test_a_revoked_agent_loses_its_tunnel_and_its_running_streams_are_told(tmp_path: Path) -> None:
    async with running_gateway(tmp_path) as gateway:
        host = Host(gateway)
        tunnel, agent = await host.dial()
        agent.serve(deployment("m"))
        await eventually(lambda: gateway.registry.models())
        running = asyncio.ensure_future(gateway.dispatcher.run(Fleet().request()))
        await eventually(lambda: agent.streams)
        agent.streams[0].stream.send_head(ResponseHead(200, ()))
        response = await running
        gateway.store.agents.revoke("gpu-1", "stolen", time.time())
        async with asyncio.timeout(60):
            error = await tunnel.wait_closed()
        assert isinstance(error, TunnelClosed)
        assert error.code is ErrorCode.REVOKED
        assert "stolen" in error.reason
        with pytest.raises(StreamBroken):
            await response.next_chunks()
        with pytest.raises(HandshakeRejected) as rejected:
            await host.dial()
        assert rejected.value.code is ErrorCode.REVOKED


async def test_a_hold_that_any_process_writes_counts_and_for_who_comes_later_too(
    tmp_path: Path,
) -> None:
    async with running_gateway(tmp_path) as gateway:
        host = Host(gateway)
        tunnel, agent = await host.dial()
        agent.serve(deployment("m"))
        await eventually(lambda: any(model.ready for model in gateway.registry.models()))
        with Store.open(tmp_path) as elsewhere:
            elsewhere.agents.hold("gpu-1", time.time(), held=True)
        await eventually(lambda: not gateway.registry.models()[0].ready)
        tunnel.endpoint.close(ErrorCode.NO_ERROR, "bye")
        await eventually(lambda: not gateway.registry.agents_connected)
        _, agent = await host.dial()
        assert gateway.registry.agents()[0].draining, "at once"
        agent.serve(deployment("m"))
        await eventually(lambda: gateway.registry.agents()[0].deployments)
        assert not gateway.registry.models()[0].ready
        await asyncio.to_thread(gateway.store.agents.hold, "gpu-1", time.time(), held=False)
        await gateway.agents.follow_store()
        assert gateway.registry.models()[0].ready
