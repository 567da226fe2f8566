"""Agents coming in over real WebSockets on loopback, with a real store behind."""

import asyncio
import threading
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import cast

import pytest
from sqlalchemy import Connection
from structlog.testing import capture_logs

from gateway.auth.agents import AdmittedAgent, AgentDirectory
from gateway.domain.request import AgentPrincipal
from gateway.domain.slices import run_at_once
from gateway.fleet.endpoint import CHECKED_AT_ONCE, RETRY_AFTER_S, AgentEndpointSettings
from gateway.fleet.registry import RegistrySettings
from gateway.fleet.session import AgentSession
from gateway.storage import AgentRecord, AgentStore, Store
from gateway.storage.identity import IdentityStore
from shared.identity import JoinToken
from shared.protocol import limits
from shared.protocol.errors import ErrorCode, HandshakeRejected, TunnelClosed
from shared.protocol.messages import AgentState, AgentStatus, Drain, ResponseHead, Trailers
from tests.gateway.fleet.agent_house import Host, eventually, running_gateway
from tests.gateway.fleet.fleet import Fleet, deployment

pytestmark = pytest.mark.usefixtures("no_leaks")


async def test_an_agent_joins_serves_and_answers(tmp_path: Path) -> None:
    async with running_gateway(tmp_path) as gateway:
        tunnel, agent = await Host(gateway).dial()
        agent.serve(deployment("m", 2))
        await eventually(lambda: gateway.registry.models())
        assert [each.software for each in gateway.registry.agents()] == ["trunkline"]
        request = Fleet().request()
        request.arrived_s = asyncio.get_running_loop().time()
        running = asyncio.ensure_future(gateway.dispatcher.run(request))
        await eventually(lambda: agent.streams)
        stream = agent.streams[0].stream
        stream.send_head(ResponseHead(200, ()))
        stream.send_data(b"hello")
        stream.end(Trailers())
        response = await running
        assert (response.status, response.agent) == (200, "gpu-1")
        received = b""
        while chunks := await response.next_chunks():
            for chunk in chunks:
                received += chunk
                response.consumed(len(chunk))
        assert received == b"hello"
        await gateway.all_exchanges_end()
        assert gateway.count("accepted") == 1
        assert gateway.agents.unauthenticated == 0
        figures = run_at_once(gateway.agents.figures())
        assert min(figures.bytes_received, figures.bytes_sent) > 100
        assert min(figures.messages_received, figures.messages_sent) >= 3
        tunnel.endpoint.close(ErrorCode.NO_ERROR, "bye")
        await eventually(lambda: not gateway.registry.agents_connected)
        assert run_at_once(gateway.agents.figures()).bytes_received >= figures.bytes_received


async def test_an_agent_comes_back_with_its_certificate_and_replaces_its_tunnel(tmp_path: Path) -> None:
    async with running_gateway(tmp_path) as gateway:
        host = Host(gateway)
        first, _ = await host.dial()
        second, agent = await host.dial()
        error = await first.wait_closed()
        assert isinstance(error, TunnelClosed)
        assert error.code is ErrorCode.REPLACED
        agent.serve(deployment("m"))
        await eventually(lambda: gateway.registry.models())
        assert gateway.registry.agents_connected == 1
        assert second.welcome.generation > first.welcome.generation


async def test_an_agent_that_is_no_good_is_told_why(tmp_path: Path) -> None:
    async with running_gateway(tmp_path) as gateway:
        other = JoinToken.new(gateway.store.gateway_identity.fingerprint)
        with pytest.raises(HandshakeRejected) as rejected:
            await Host(gateway, token=other).dial()
        assert rejected.value.code is ErrorCode.UNAUTHENTICATED
        await eventually(lambda: not gateway.agents.unauthenticated)
        assert gateway.count("not_authenticated") == 1


async def test_a_full_gateway_tells_agents_when_to_come_again(tmp_path: Path) -> None:
    async with running_gateway(tmp_path, registry=RegistrySettings(max_agents=1)) as gateway:
        await Host(gateway, "gpu-1").dial()
        with pytest.raises(HandshakeRejected) as rejected:
            await Host(gateway, "gpu-2").dial()
        assert rejected.value.code is ErrorCode.OVERLOADED
        assert rejected.value.retry_after_s


async def test_draining_tells_agents_and_turns_newcomers_away(tmp_path: Path) -> None:
    async with running_gateway(tmp_path) as gateway:
        _, agent = await Host(gateway).dial()
        gateway.agents.drain("restart", 30.0)
        await eventually(lambda: agent.drained)
        assert agent.drained is not None
        assert agent.drained.deadline_s == 30.0
        with pytest.raises(HandshakeRejected) as refused:
            await Host(gateway, "gpu-2").dial()
        assert refused.value.code is ErrorCode.DRAINING
        assert refused.value.retry_after_s == RETRY_AFTER_S


async def test_closing_ends_every_session(tmp_path: Path) -> None:
    async with running_gateway(tmp_path) as gateway:
        tunnel, _ = await Host(gateway).dial()
        await gateway.agents.close(reason="the gateway restarts")
        error = await tunnel.wait_closed()
        assert isinstance(error, TunnelClosed)
        assert (error.code, error.reason) == (ErrorCode.DRAINING, "the gateway restarts")
        await gateway.agents.close()


async def test_what_an_agent_may_not_serve_is_not_served(tmp_path: Path) -> None:
    async with running_gateway(tmp_path) as gateway:
        token, _ = gateway.store.tokens.create(3600, 1, ("llama-*",), {}, time.time())
        _, agent = await Host(gateway, token=token).dial()
        states = (deployment("llama-3"), deployment("gpt-5"))
        agent.endpoint.send_state(AgentState(AgentStatus.READY, states))
        await eventually(lambda: gateway.registry.models())
        assert [model.id for model in gateway.registry.models()] == ["llama-3"]


async def test_a_client_that_leaves_stops_the_engine_and_frees_its_slot(tmp_path: Path) -> None:
    async with running_gateway(tmp_path) as gateway:
        _, agent = await Host(gateway).dial()
        agent.serve(deployment("m", 1))
        await eventually(lambda: gateway.registry.models())
        requests = Fleet()
        leaving = asyncio.ensure_future(gateway.dispatcher.run(requests.request()))
        staying = asyncio.ensure_future(gateway.dispatcher.run(requests.request()))
        await eventually(lambda: agent.streams)
        leaving.cancel()
        await eventually(lambda: agent.streams[0].reset_code is ErrorCode.CANCELLED)
        assert len(agent.streams) == 1
        agent.streams[0].confirm()
        await eventually(lambda: len(agent.streams) == 2)
        staying.cancel()
        await eventually(lambda: agent.streams[1].reset_code is ErrorCode.CANCELLED)
        agent.streams[1].confirm()
        await gateway.all_exchanges_end()


async def test_a_request_whose_agent_leaves_before_the_answer_is_moved(tmp_path: Path) -> None:
    async with running_gateway(tmp_path) as gateway:
        tunnel, first = await Host(gateway, "gpu-1").dial()
        first.serve(deployment("m"))
        await eventually(lambda: gateway.registry.models())
        running = asyncio.ensure_future(gateway.dispatcher.run(Fleet().request()))
        await eventually(lambda: first.streams)
        _, second = await Host(gateway, "gpu-2").dial()
        second.serve(deployment("m"))
        tunnel.endpoint.close(ErrorCode.NO_ERROR, "the agent stopped")
        await eventually(lambda: second.streams)
        second.streams[0].stream.send_head(ResponseHead(200, ()))
        response = await running
        assert (response.agent, response.attempts) == ("gpu-2", 2)
        response.abort()
        await gateway.cancel_is_confirmed(second)


SELDOM_ALL = AgentEndpointSettings(revocation_tick_s=3600.0, seen_tick_s=3600.0, renewal_tick_s=3600.0)


class Readers:
    """The threads in which the store is asked who the agents are and which keys the gateway has."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.of_agents: set[int] = set()
        self.of_keys: set[int] = set()
        changed_since, read = AgentStore.changed_since, IdentityStore._read

        def agents(store: AgentStore, revision: int) -> tuple[int, Sequence[AgentRecord]]:
            self.of_agents.add(threading.get_ident())
            return changed_since(store, revision)

        def keys(store: IdentityStore, connection: Connection) -> dict[str, str]:
            self.of_keys.add(threading.get_ident())
            return read(store, connection)

        monkeypatch.setattr(AgentStore, "changed_since", agents)
        monkeypatch.setattr(IdentityStore, "_read", keys)


async def test_the_event_loops_thread_reads_neither_agents_nor_the_gateways_keys(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running_gateway(tmp_path) as gateway:
        host = Host(gateway)
        await host.dial()
        await asyncio.to_thread(gateway.store.keys.create, "k", "default", 1.0)
        pinned = gateway.store.gateway_identity.fingerprint
        readers = Readers(monkeypatch)
        tunnel, _ = await host.dial(pinned=pinned)
        await asyncio.to_thread(gateway.store.agents.revoke, "gpu-1", "", time.time())
        await tunnel.wait_closed()
        await eventually(lambda: readers.of_agents and readers.of_keys)
        assert threading.get_ident() not in readers.of_agents | readers.of_keys


async def test_a_handshake_begins_with_the_gateways_key_of_then(tmp_path: Path) -> None:
    async with running_gateway(tmp_path, SELDOM_ALL) as gateway:
        await Host(gateway).dial()
        with Store.open(gateway.store.state_dir) as command:
            command.identity.rotate(0.0, time.time())
            pinned = command.gateway_identity.fingerprint
            token, _ = command.tokens.create(3600, 1, ("*",), {}, time.time())
        tunnel, _ = await Host(gateway, "gpu-2", token).dial(pinned=pinned)
        assert tunnel.open


class Connected:
    """A session that is only counted."""

    closed = False

    def close(self, code: ErrorCode, reason: str) -> None:
        self.closed = True


async def test_a_change_of_agents_is_held_against_so_many_sessions_a_turn_of_the_loop(tmp_path: Path) -> None:
    turn, checked = 0, Counter[int]()

    class Watching(AgentDirectory):
        def changed(self) -> bool:
            return True

        def refusal(self, admitted: AdmittedAgent) -> str | None:
            checked[turn] += 1
            return None

        def rights(self, admitted: AdmittedAgent) -> AgentPrincipal:
            checked[turn] += 1
            return admitted.principal

    async with running_gateway(tmp_path, SELDOM_ALL) as gateway:
        endpoint = gateway.agents
        endpoint._directory = Watching(gateway.store)
        await Host(gateway).dial()
        (admitted,) = endpoint._agents.values()
        endpoint._agents.update((cast(AgentSession, Connected()), admitted) for _ in range(1000))
        checked.clear()
        looking = asyncio.ensure_future(endpoint._look_after_sessions())
        while not looking.done():
            await asyncio.sleep(0)
            turn += 1
        await looking
        assert sum(checked.values()) == 2 * 1001
        assert max(checked.values()) <= 2 * CHECKED_AT_ONCE, "an end and a beginning"


async def test_when_agents_were_last_seen_is_on_record(tmp_path: Path) -> None:
    async with running_gateway(tmp_path) as gateway:
        tunnel, _ = await Host(gateway).dial()

        def last_seen_s() -> float | None:
            record = gateway.store.agents.get("gpu-1")
            assert record is not None
            return record.last_seen_s

        await eventually(last_seen_s)
        leaves_s = time.time()
        tunnel.abort()
        await eventually(lambda: gateway.registry.sessions[0].shown_status == "SUSPENDED")
        await eventually(lambda: (last_seen_s() or 0) >= leaves_s)


SELDOM = AgentEndpointSettings(revocation_tick_s=0.01, seen_tick_s=3600.0, renewal_tick_s=0.01)


async def test_an_agent_was_seen_as_soon_as_it_is_connected_and_once_more_when_the_gateway_stops(
    tmp_path: Path,
) -> None:
    wall_s = time.time()
    async with running_gateway(tmp_path, SELDOM, wall=lambda: wall_s) as gateway:

        def seen() -> list[float | None]:
            return [record.last_seen_s for record in gateway.store.agents.list()]

        hosts = [Host(gateway, f"gpu-{number}") for number in range(3)]
        tunnels = [await host.dial() for host in hosts]
        connected_s = wall_s
        await eventually(lambda: seen() == [connected_s] * 3)
        wall_s += 60.0
        tunnels[0][0].endpoint.close(ErrorCode.NO_ERROR, "the agent stopped")
        await eventually(lambda: gateway.registry.agents_connected == 2)
        await gateway.agents.close()
        assert seen() == [wall_s] * 3


async def test_an_agent_that_says_goodbye_is_not_lost(tmp_path: Path) -> None:
    async with running_gateway(tmp_path) as gateway:
        with capture_logs() as logs:
            tunnel, _ = await Host(gateway).dial()
            await eventually(lambda: gateway.registry.agents_connected)
            tunnel.endpoint.send_drain(Drain("the agent stopped", 0.0))
            tunnel.endpoint.close(ErrorCode.NO_ERROR, "the agent stopped")
            await eventually(lambda: not gateway.registry.agents_connected)
    (left,) = [line for line in logs if line["event"] == "agent_left"]
    assert (left["agent"], left["reason"], left["log_level"]) == ("gpu-1", "the agent stopped", "info")
    assert [line["event"] for line in logs if line["log_level"] != "info"] == []


async def test_nothing_is_kept_of_agents_that_have_left(tmp_path: Path) -> None:
    async with running_gateway(tmp_path) as gateway:
        certificates = gateway.registry.metrics.gauges.agent_certificates
        for name in ("first", "second"):
            tunnel, _ = await Host(gateway, name).dial()
            await eventually(lambda: len(list(certificates())) == 1)
            tunnel.endpoint.close(ErrorCode.NO_ERROR, "the agent stopped")
            await eventually(lambda: not list(certificates()))


@pytest.mark.parametrize("how", ["cut", "broken"])
async def test_an_agent_that_goes_without_a_word_or_with_a_fault_is_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    monkeypatch.setattr(limits, "RESUME_WINDOW_S", 0.05)
    async with running_gateway(tmp_path) as gateway:
        with capture_logs() as logs:
            tunnel, _ = await Host(gateway).dial()
            await eventually(lambda: gateway.registry.agents_connected)
            if how == "cut":
                tunnel.abort(TunnelClosed("cut"))
            else:
                tunnel.endpoint.close(ErrorCode.PROTOCOL_ERROR, "a frame makes no sense")
            await eventually(lambda: not gateway.registry.agents_connected)
    (lost,) = [line for line in logs if line["event"] in ("agent_left", "agent_lost")]
    assert (lost["event"], lost["log_level"]) == ("agent_lost", "warning")
