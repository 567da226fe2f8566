"""Connected agents are given fresh certificates, names and keys inside their sessions."""

import asyncio
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import pytest

from gateway.auth.agents import AdmittedAgent
from gateway.domain.request import AgentPrincipal
from gateway.fleet.renewals import AT_ONCE, OTHERS_WAIT_S, Renewals, RenewalThreads
from shared.handshake import Renewal
from shared.identity import CERTIFICATE_LIFE_S, GatewayIdentity, GatewayKeys
from shared.link.membership import Membership
from shared.protocol.errors import HandshakeError, LocalError, TunnelClosed
from shared.protocol.messages import CommandResult, ResponseHead, Trailers
from shared.tunnel import DialledTunnel, dial
from tests.gateway.fleet.agent_house import Gateway, Host, eventually, running_gateway
from tests.gateway.fleet.fleet import FakeAgent, Fleet, deployment
from tests.gateway.fleet.manual_timers import Loop
from tests.support.clock import ManualClock
from tests.support.identities import key_of

DAY_S = 86_400.0


class Member:
    """A host whose identity is a real agent's."""

    def __init__(self, gateway: Gateway, directory: Path, wall: ManualClock) -> None:
        self.gateway = gateway
        self.directory = directory
        self.wall = wall
        self.membership = self.opened(gateway.token().encode())
        self.verbs: list[str] = []

    def opened(self, join: str | None = None) -> Membership:
        return Membership.open(self.directory, join=join, name=None, default_name="gpu-1", wall=self.wall)

    async def dial(self) -> tuple[DialledTunnel, FakeAgent]:
        agent = FakeAgent(self.membership.name, Loop(), None)  # type: ignore[arg-type]
        agent.host = lambda command: self.carry_out(agent, command)
        tunnel = await dial(
            self.gateway.url,
            handshake=self.membership.handshake("trunkline test"),
            listener=agent,
            clock=asyncio.get_running_loop().time,
        )
        self.membership.welcomed(tunnel.welcome)
        agent.endpoint = tunnel.endpoint
        return tunnel, agent

    def carry_out(self, agent: FakeAgent, command: Mapping[str, Any]) -> None:
        self.verbs.append(command["verb"])
        result = CommandResult(command["id"], True)
        try:
            self.membership.renew(Renewal.read(command))
        except HandshakeError as error:
            result = CommandResult(command["id"], False, str(error))
        agent.endpoint.send_command(result.to_dict())


@pytest.mark.usefixtures("no_leaks")
async def test_a_session_is_renewed_while_it_runs_a_request(tmp_path: Path) -> None:
    wall = ManualClock(time.time())
    async with running_gateway(tmp_path / "state", wall=wall) as gateway:
        member = Member(gateway, tmp_path / "agent", wall)
        tunnel, agent = await member.dial()
        agent.serve(deployment("m"))
        await eventually(lambda: gateway.registry.models())
        running = asyncio.ensure_future(gateway.dispatcher.run(Fleet().request()))
        await eventually(lambda: agent.streams)
        first = (tmp_path / "agent" / "membership.json").read_bytes()
        for lives in range(1, 4):
            wall.advance(CERTIFICATE_LIFE_S * 0.7)
            await eventually(lambda lives=lives: len(member.verbs) == lives)  # type: ignore[misc]
        assert (tmp_path / "agent" / "membership.json").read_bytes() != first
        agent.streams[0].stream.send_head(ResponseHead(200, ()))
        agent.streams[0].stream.send_data(b"still here")
        agent.streams[0].stream.end(Trailers())
        response = await running
        assert await response.next_chunks() == [b"still here"]
        assert await response.next_chunks() == []
        response.consumed(10)
        tunnel.abort()
        await member.dial()
        assert member.verbs == ["renew"] * 3


@pytest.mark.usefixtures("no_leaks")
async def test_a_new_key_and_a_new_name_reach_a_connected_agent(tmp_path: Path) -> None:
    wall = ManualClock(time.time())
    async with running_gateway(tmp_path / "state", wall=wall) as gateway:
        member = Member(gateway, tmp_path / "agent", wall)
        tunnel, agent = await member.dial()
        agent.serve(deployment("m", 2))
        await eventually(lambda: gateway.registry.models())
        keys = gateway.store.identity.rotate(30 * DAY_S, wall())
        await eventually(lambda: member.membership.gateway == keys.current.id)
        gateway.store.agents.rename("gpu-1", "berlin-1")
        await eventually(lambda: member.membership.name == "berlin-1")
        # Renewals and rights are looked at by two tasks: either may be the first to see the new name.
        await eventually(lambda: [each.name for each in gateway.registry.agents()] == ["berlin-1"])
        (session,) = gateway.registry.sessions
        assert [each.key for each in session.deployments.values()] == ["berlin-1/d-m"]
        assert gateway.registry.models()[0].ready
        assert tunnel.open
        wall.advance(30 * DAY_S)
        await eventually(lambda: gateway.store.identity.keys.previous is None)
        tunnel.abort()
        member.membership = member.opened()
        assert (await member.dial())[0].open
        await eventually(lambda: [each.name for each in gateway.registry.agents()] == ["berlin-1"])


@pytest.mark.usefixtures("no_leaks")
async def test_an_agent_that_was_renamed_while_it_was_away_goes_on_with_its_session(tmp_path: Path) -> None:
    async with running_gateway(tmp_path) as gateway:
        host = Host(gateway)
        lost, agent = await host.dial()
        agent.serve(deployment("m"))
        await eventually(lambda: gateway.registry.models())
        lost.abort(TunnelClosed("cut"))
        await eventually(lambda: gateway.registry.sessions[0].suspended)
        gateway.store.agents.rename("gpu-1", "berlin-1")
        back, _ = await host.dial(lost)
        assert back.resumed
        assert [each.name for each in gateway.registry.agents()] == ["berlin-1"]


@pytest.mark.usefixtures("no_leaks")
async def test_rights_set_anew_take_effect_in_the_session(tmp_path: Path) -> None:
    async with running_gateway(tmp_path) as gateway:
        _, agent = await Host(gateway).dial()
        agent.serve(deployment("llama"), deployment("qwen"))
        (session,) = gateway.registry.sessions
        await eventually(lambda: len(session.deployments) == 2)
        gateway.store.agents.allow("gpu-1", ["llama"], {"region": "eu"})
        await eventually(lambda: set(session.deployments) == {"d-llama"})
        assert session.deployments["d-llama"].labels == {"region": "eu"}
        gateway.store.agents.allow("gpu-1", ["*"], None)
        await eventually(lambda: set(session.deployments) == {"d-llama", "d-qwen"})


@pytest.mark.usefixtures("no_leaks")
async def test_an_agent_that_knows_no_renewal_gets_its_certificate_on_the_next_tunnel(tmp_path: Path) -> None:
    wall = ManualClock(time.time())
    async with running_gateway(tmp_path, wall=wall) as gateway:
        host = Host(gateway)
        tunnel, agent = await host.dial()

        def refuse(command: Mapping[str, Any]) -> None:
            agent.endpoint.send_command({"id": command["id"], "ok": False, "error": "no such verb"})

        agent.host, first = refuse, host.certificate
        wall.advance(CERTIFICATE_LIFE_S * 0.7)
        assert await tunnel.wait_closed()
        back, _ = await host.dial(tunnel)
        assert back.resumed
        assert host.certificate != first
        assert back.open


UPGRADE = (
    b"GET /tunnel HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n"
    b"Sec-WebSocket-Protocol: trunkline.1\r\n%s\r\n"
)


async def challenger(gateway: Gateway, header: str) -> str:
    """The id of the key that CHALLENGE shows after an upgrade with this header."""
    port = int(gateway.url.rpartition(":")[2].partition("/")[0])
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(UPGRADE % header.encode())
    await reader.readuntil(b'"gateway":"')
    shown = (await reader.readexactly(16)).decode()
    writer.close()
    await writer.wait_closed()
    return shown


@pytest.mark.usefixtures("no_leaks")
async def test_who_does_not_say_whom_it_trusts_meets_the_key_before(tmp_path: Path) -> None:
    wall = ManualClock(time.time())
    async with running_gateway(tmp_path, wall=wall) as gateway:
        before = gateway.store.gateway_identity.id
        now = gateway.store.identity.rotate(DAY_S, wall()).current.id
        assert await challenger(gateway, "") == before
        assert await challenger(gateway, f"Trunkline-Gateways: {before}\r\n") == before
        assert await challenger(gateway, f"trunkline-gateways: {now} {before}\r\n") == now
        assert await challenger(gateway, "Trunkline-Gateways: ,;!\r\n") == now
        wall.advance(DAY_S)
        assert await challenger(gateway, "") == now
        assert await challenger(gateway, f"Trunkline-Gateways: {before}\r\n") == now


class Session:
    """What renewals use of an agent's session."""

    def __init__(self) -> None:
        self.closed = self.suspended = False
        self.asked: list[Mapping[str, Any]] = []
        self.full = False
        self.principal = AgentPrincipal("gpu-1")
        self.endpoint = self
        self.answer: Any = None
        self.dropped = 0

    def ask(self, command: Mapping[str, Any], answered: Any) -> None:
        if self.full:
            raise LocalError("64 commands are waiting to be sent")
        self.asked.append(command)
        self.answer = answered

    def refuse(self) -> None:
        self.answer(CommandResult(self.asked[-1]["id"], False, "no"))

    def drop_tunnel(self) -> None:
        self.dropped += 1


async def test_renewals_are_sent_some_at_a_time_and_once() -> None:
    class Certificate:
        der = b"certificate"

    async def issue(admitted: Any, wall_s: float) -> Any:
        return Certificate(), None

    sessions = [Session() for _ in range(AT_ONCE + 10)]
    agents: dict[Any, Any] = {each: holding(1) for each in sessions}
    sessions[0].suspended = sessions[1].closed = sessions[2].full = True
    renewals = Renewals(agents)
    await renewals.look(lambda admitted: True, issue, 0.0)
    assert sum(len(each.asked) for each in sessions) == AT_ONCE - 1
    sessions[2].full = False
    for _ in range(3):
        await renewals.look(lambda admitted: True, issue, 0.0)
    assert [len(each.asked) for each in sessions] == [0, 0] + [1] * (AT_ONCE + 8)
    ids = [command["id"] for each in sessions for command in each.asked]
    assert len(set(ids)) == len(ids)


@dataclass(frozen=True)
class Paper:
    """What renewals use of a certificate."""

    serial: int
    worn_from_s: float = 100.0
    not_after_s: float = 200.0
    der: bytes = b"certificate"

    def needs_renewal(self, wall_s: float) -> bool:
        return wall_s >= self.worn_from_s


def holding(serial: int) -> AdmittedAgent:
    paper: Any = Paper(serial)
    return AdmittedAgent(AgentPrincipal("gpu-1"), None, 1, paper)


async def issue_paper(admitted: Any, wall_s: float) -> Any:
    return Paper(9), None


async def test_an_agent_that_did_not_take_a_certificate_is_asked_again_when_its_own_has_worn() -> None:
    session = Session()
    agents: dict[Any, Any] = {session: holding(1)}
    renewals = Renewals(agents)
    for wall_s, asked, dropped in ((0.0, 1, 0), (50.0, 1, 0), (100.0, 2, 1), (150.0, 2, 1)):
        before = len(session.asked)
        await renewals.look(lambda admitted: True, issue_paper, wall_s)
        if len(session.asked) > before:
            session.refuse()
        assert (len(session.asked), session.dropped) == (asked, dropped), wall_s


async def test_a_session_stays_up_when_a_new_tunnel_would_be_refused_for_the_dates() -> None:
    session = Session()
    agents: dict[Any, Any] = {session: holding(1)}
    renewals = Renewals(agents)
    await renewals.look(lambda admitted: True, issue_paper, 201.0)
    session.refuse()
    assert (len(session.asked), session.dropped) == (1, 0)


async def test_a_renewal_that_comes_behind_a_newer_certificate_is_no_reason_to_ask_no_more() -> None:
    session = Session()
    agents: dict[Any, Any] = {session: holding(1)}
    renewals = Renewals(agents)
    await renewals.look(lambda admitted: True, issue_paper, 100.0)
    agents[session] = holding(2)  # by WELCOME, while the command waited for a tunnel
    session.refuse()
    await renewals.look(lambda admitted: True, issue_paper, 0.0)
    assert (len(session.asked), session.dropped) == (2, 0)


async def test_nothing_is_issued_for_sessions_that_end_meanwhile() -> None:
    sessions, issued = [Session(), Session()], []

    async def issue(admitted: Any, wall_s: float) -> Any:
        issued.append(admitted)
        for each in sessions:
            each.closed = True
        return Paper(9), None

    agents: dict[Any, Any] = {each: holding(1) for each in sessions}
    await Renewals(agents).look(lambda admitted: True, issue, 0.0)
    assert len(issued) == 1


class Directory:
    """What a sweep uses of :class:`gateway.auth.agents.AgentDirectory`."""

    def __init__(self) -> None:
        self.known_keys = GatewayKeys(GatewayIdentity(key_of("gateway")))
        self.issued = 0
        self.renewed: set[int] = set()
        """Agents that another process has issued a certificate for."""

    def renewal_check(self, wall_s: float) -> Any:
        return lambda admitted: True

    def renewed_since(self, admitted: AdmittedAgent) -> bool:
        return admitted.agent_id in self.renewed

    def renew(self, admitted: AdmittedAgent, wall_s: float) -> Any:
        self.issued += 1
        return Paper(9), None


async def test_of_several_processes_the_owner_renews_and_others_what_it_left_for_long() -> None:
    session, directory = Session(), Directory()
    agents: dict[Any, Any] = {session: holding(1)}
    renewals, what = Renewals(agents), cast(Any, directory)
    with ThreadPoolExecutor(1) as thread:
        threads = RenewalThreads(thread, thread)
        for wall_s, issued in ((0.0, 0), (OTHERS_WAIT_S - 1, 0), (OTHERS_WAIT_S, 1)):
            await renewals.sweep(what, threads, wall_s, owns=False)
            assert directory.issued == issued, wall_s
        agents[session] = holding(2)
        renewals = Renewals(agents)
        await renewals.sweep(what, threads, 0.0, owns=False)
        directory.renewed.add(1)
        await renewals.sweep(what, threads, OTHERS_WAIT_S, owns=False)
        assert directory.issued == 1, "the owner has sent it"
        await renewals.sweep(what, threads, OTHERS_WAIT_S, owns=True)
        assert directory.issued == 2, "a new owner cannot know whether the one before it was heard"
