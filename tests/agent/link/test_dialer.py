"""One tunnel is kept up, for as long as the gateway wants this agent."""

import asyncio
import base64
import json
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import structlog

from agent.capacity.engine_registry import EngineRegistry
from agent.link.backoff import STEADY_S, SUSPICIOUS_S
from agent.link.dialer import DialSettings, LiveTunnel, Rejected, TunnelDialer, _Kept, dial_with
from agent.link.membership import Membership, MembershipError
from agent.link.publisher import Publisher
from agent.link.session import GatewaySession
from agent.requests.runner import RequestRunner
from shared.handshake import AgentHandshake, Welcome
from shared.identity import JoinToken, issue_certificate, public_bytes
from shared.identity.certificates import read_kept
from shared.protocol.endpoint import SessionEndpoint, SessionListener
from shared.protocol.errors import (
    DialFailed,
    ErrorCode,
    GatewayUntrusted,
    HandshakeRejected,
    TrunklineError,
    TunnelClosed,
)
from shared.protocol.messages import DeploymentState
from tests.agent.support.canned import until
from tests.agent.support.joined import Doorman, Joined, PlayedBackend
from tests.support.clock import ManualClock
from tests.support.identities import GATEWAY, OTHER_GATEWAY, TOKEN, WALL_S
from tests.support.tunnels import Recorder, accepting, request_head

OUT_OF_DATE = HandshakeRejected(ErrorCode.UNAUTHENTICATED, "the certificate expired", 60.0)
SETTLED = HandshakeRejected(ErrorCode.UNAUTHENTICATED, "this gateway made no such join token")


class Tunnel:
    """A tunnel that ends when the test says so."""

    def __init__(self, joined: Joined, welcome: Welcome) -> None:
        self.endpoint = joined.agent
        self.welcome = welcome
        self.ended: asyncio.Future[TrunklineError | None] = asyncio.get_running_loop().create_future()
        self.endpoint.on_close = lambda: self.ended.set_result(None)
        self.aborted = False
        self.resumed = False

    async def wait_closed(self) -> TrunklineError | None:
        return await self.ended

    def abort(self, error: TrunklineError | None = None) -> None:
        self.aborted = True


class World:
    """A dialer whose attempts, time and chance are the test's. ``plan`` holds what attempts come to: an error
    to raise, or how the tunnel ends and after how long; when it is used up, the tunnel stays."""

    def __init__(self, directory: Path, join: str | None = TOKEN.encode()) -> None:
        self.clock = ManualClock()
        self.membership = Membership.open(directory, join=join, name="gpu-1", default_name="x")
        self.plan: list[TrunklineError | tuple[TrunklineError, float]] = []
        self.waits: list[float] = []
        self.certificates: list[bool] = []
        self.tunnels: list[Tunnel] = []
        self.gateway = Recorder()
        self.up = asyncio.Event()
        registry = EngineRegistry(self.clock)
        registry.add(PlayedBackend(DeploymentState(id="e/m", model="m", slots=4)))
        publisher = Publisher(registry, lambda: (), self.clock)
        self.tasks = asyncio.TaskGroup()
        runner = RequestRunner(registry, self.clock)
        self.dialer = TunnelDialer(
            self.membership,
            lambda: GatewaySession(runner, publisher, registry.carry_out, self.membership.renew),
            self._dial,
            clock=self.clock,
            sleep=self._sleep,
            chance=lambda: 1.0,
        )

    async def _sleep(self, delay_s: float) -> None:
        self.waits.append(delay_s)
        self.clock.advance(delay_s)
        await asyncio.sleep(0)

    async def _dial(
        self, handshake: AgentHandshake, listener: SessionListener, resumes: SessionEndpoint | None
    ) -> LiveTunnel:
        fate = self.plan.pop(0) if self.plan else None
        if isinstance(fate, TrunklineError):
            raise fate
        joining = handshake._join_token is not None
        self.certificates.append(not joining)
        key = public_bytes(handshake._key)
        certificate = issue_certificate(GATEWAY, "gpu-1", key, 1, WALL_S) if joining else None
        welcome = Welcome(
            session_id="s",
            generation=1,
            limits={},
            certificate=certificate,
            heartbeat_s=10.0,
            resume_window_s=0.0,
        )
        tunnel = Tunnel(Joined(listener, self.gateway), welcome)
        self.tunnels.append(tunnel)
        if fate is None:
            self.up.set()
        else:
            error, lived_s = fate
            self.clock.advance(0)
            asyncio.get_running_loop().call_soon(self._end, tunnel, error, lived_s)
        return tunnel

    def _end(self, tunnel: Tunnel, error: TrunklineError, lived_s: float) -> None:
        self.clock.advance(lived_s)
        tunnel.ended.set_result(error)

    async def until_up(self, *plan: TrunklineError | tuple[TrunklineError, float]) -> list[float]:
        """Runs the plan until a tunnel stays; gives the waits before each attempt."""
        self.plan = list(plan)
        running = asyncio.ensure_future(self.dialer.run())
        waiting = asyncio.ensure_future(self.up.wait())
        await asyncio.wait({running, waiting}, return_when=asyncio.FIRST_COMPLETED)
        waiting.cancel()
        running.cancel()
        await asyncio.gather(running, waiting, return_exceptions=True)
        if not running.cancelled() and (error := running.exception()) is not None:
            raise error
        return self.waits


LOST = TunnelClosed("connection closed by the peer")
DOWN = DialFailed("connection refused")


async def test_the_first_attempt_is_made_at_once_and_joins(tmp_path: Path) -> None:
    world = World(tmp_path)
    assert await world.until_up() == [0.0]
    assert world.membership.joined
    assert world.certificates == [False]


async def test_a_member_shows_its_certificate(tmp_path: Path) -> None:
    await World(tmp_path).until_up()
    world = World(tmp_path, join=None)
    await world.until_up()
    assert world.certificates == [True]


async def test_the_loss_of_a_good_tunnel_is_answered_at_once(tmp_path: Path) -> None:
    assert await World(tmp_path).until_up((LOST, STEADY_S)) == [0.0, 0.0]


async def test_failures_are_answered_with_short_waits_at_first(tmp_path: Path) -> None:
    waits = await World(tmp_path).until_up((LOST, 60.0), DOWN, DOWN, DOWN, (LOST, 0.5))
    assert waits == [0.0, 0.0, 1.0, 1.0, 1.0, 1.0]


async def test_where_nobody_listens_waits_are_shorter(tmp_path: Path) -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        handshake = World(tmp_path / "other").membership.handshake("trunkline test")
        settings = DialSettings(url=f"ws://127.0.0.1:{silent.getsockname()[1]}/tunnel")
        with pytest.raises(DialFailed) as refused:
            await dial_with(settings, ManualClock())(handshake, Recorder(), None)
    assert await World(tmp_path).until_up((LOST, 60.0), refused.value, DOWN) == [0.0, 0.0, 0.5, 1.0]


async def test_what_the_gateway_says_about_when_to_come_wins(tmp_path: Path) -> None:
    busy = HandshakeRejected(ErrorCode.OVERLOADED, "too many agents", 20.0)
    assert await World(tmp_path).until_up(busy, DOWN) == [0.0, 25.0, 1.0]


async def test_a_gateway_that_restarts_is_given_a_moment(tmp_path: Path) -> None:
    going = TunnelClosed("restarting", ErrorCode.DRAINING)
    assert await World(tmp_path).until_up((going, 3600.0)) == [0.0, 1.0]


async def test_a_twin_is_not_fought(tmp_path: Path) -> None:
    replaced = TunnelClosed("a newer tunnel", ErrorCode.REPLACED)
    waits = await World(tmp_path).until_up((replaced, 3600.0))
    assert waits[1] >= SUSPICIOUS_S


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (SETTLED, "does not accept this agent: this gateway made no such join token"),
        (HandshakeRejected(ErrorCode.REVOKED, "gone"), "sent this agent away for good: gone"),
        (HandshakeRejected(ErrorCode.VERSION, "upgrade the older"), "upgrade the older"),
        (GatewayUntrusted("the join token is for gateway a"), "the join token is for gateway a"),
    ],
)
async def test_a_final_no_ends_it_with_words(tmp_path: Path, error: TrunklineError, words: str) -> None:
    with pytest.raises(Rejected, match=words):
        await World(tmp_path).until_up(error)


async def test_a_revocation_while_connected_ends_it(tmp_path: Path) -> None:
    revoked = TunnelClosed("agent gpu-1 was revoked", ErrorCode.REVOKED)
    with pytest.raises(Rejected, match="was revoked"):
        await World(tmp_path).until_up((revoked, 60.0))


async def test_a_member_waits_for_its_gateway_when_another_answers(tmp_path: Path) -> None:
    await World(tmp_path).until_up()
    waits = await World(tmp_path).until_up(GatewayUntrusted("another gateway answered"))
    assert waits == [0.0, 1.0]


async def test_a_refused_certificate_is_replaced_with_the_token_at_once(tmp_path: Path) -> None:
    await World(tmp_path).until_up()
    world = World(tmp_path)
    assert await world.until_up(SETTLED) == [0.0, 0.0]
    assert world.certificates == [False]
    with pytest.raises(Rejected):
        await World(tmp_path).until_up(SETTLED, SETTLED)


@pytest.mark.parametrize("join", [None, TOKEN.encode()], ids=["certificate", "and-token"])
async def test_a_gateway_whose_clock_jumped_is_asked_again_until_it_is_right(
    tmp_path: Path, join: str | None
) -> None:
    await World(tmp_path).until_up()
    world = World(tmp_path, join=join)
    plan = [OUT_OF_DATE, OUT_OF_DATE, OUT_OF_DATE]
    if join is not None:
        plan[1:1] = [SETTLED]
    with structlog.testing.capture_logs() as logs:
        waits = await world.until_up(*plan)
    assert all(60.0 <= wait_s <= 120.0 for wait_s in waits[-2:]), waits
    assert world.certificates == [True]
    complaints = [entry for entry in logs if entry["event"] == "cannot connect, trying again and again"]
    assert [entry["reason"] for entry in complaints] == ["the certificate expired"]


async def test_an_earlier_certificate_is_tried_at_once_and_each_minute_and_said_once(tmp_path: Path) -> None:
    await World(tmp_path).until_up()
    path = tmp_path / "membership.json"
    value = json.loads(path.read_bytes())
    key = read_kept(base64.b64decode(value["certificate"])).public_key
    behind = issue_certificate(GATEWAY, "gpu-1", key, 2, WALL_S - 400 * 86_400).der
    value |= {
        "former_certificates": [value["certificate"]],
        "certificate": base64.b64encode(behind).decode(),
    }
    path.write_text(json.dumps(value))
    world = World(tmp_path, join=None)
    with structlog.testing.capture_logs() as logs:
        waits = await world.until_up(OUT_OF_DATE, SETTLED, OUT_OF_DATE, OUT_OF_DATE, OUT_OF_DATE)
    assert [wait_s >= 60.0 for wait_s in waits] == [False, False, True, False, True, False], waits
    assert world.certificates == [True]
    lines = [entry["event"] for entry in logs if entry["log_level"] == "warning"]
    assert lines == [
        "refused, trying otherwise",
        "cannot connect, trying again and again",
        "a certificate from before the newest did",
    ]
    assert json.loads(path.read_bytes())["certificate"] == value["former_certificates"][0]


async def test_a_certificate_that_cannot_be_kept_ends_a_joining_agent_and_no_member(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*args: object) -> None:
        raise MembershipError("disk full")

    monkeypatch.setattr("agent.link.membership.MemberRecord.write", full)
    with pytest.raises(MembershipError, match="disk full"):
        await World(tmp_path / "a").until_up()
    monkeypatch.undo()
    await World(tmp_path / "b").until_up()
    monkeypatch.setattr("agent.link.membership.MemberRecord.write", full)
    await World(tmp_path / "b").until_up(SETTLED)


async def test_the_gateway_hears_of_slots_on_every_new_tunnel(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.plan = [(LOST, 60.0)]
    running = asyncio.ensure_future(world.dialer.run())
    await until(lambda: world.gateway.names().count("slots") == 2)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    assert world.tunnels[1].aborted


async def test_closing_ends_the_session_in_order(tmp_path: Path) -> None:
    world = World(tmp_path)
    running = asyncio.ensure_future(world.dialer.run())
    await until(lambda: world.dialer.session)
    world.dialer.close("bye")
    await running
    assert not world.tunnels[0].aborted
    assert world.waits == [0.0]


async def test_every_command_is_answered_in_turn(tmp_path: Path) -> None:
    world = World(tmp_path)
    running = asyncio.ensure_future(world.dialer.run())
    await until(lambda: world.dialer.session)
    assert world.dialer.session is not None
    world.dialer.session.on_command({"id": 4, "verb": "dance"})
    world.dialer.session.on_command({"id": 5, "verb": "load", "deployment": "e/m"})
    world.dialer.session.drain("stopping", 5.0)
    await world.gateway.until("result")
    await until(lambda: world.gateway.names().count("result") == 2)
    results = [result for name, result in world.gateway.calls if name == "result"]
    assert [(result["id"], result["ok"]) for result in results] == [(4, False), (5, False)]
    assert "verb" in results[0]["error"]
    assert "not one that is loaded and unloaded" in results[1]["error"]
    assert (await world.gateway.until("drain")).reason == "stopping"
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


class Real:
    """An agent's dialer on a real socket."""

    def __init__(self, url: str, directory: Path, tasks: asyncio.TaskGroup, token: JoinToken = TOKEN) -> None:
        self.membership = Membership.open(directory, join=token.encode(), name="gpu-1", default_name="x")
        registry = EngineRegistry()
        self.backend = PlayedBackend(DeploymentState(id="d1", model="demo", slots=2))
        registry.add(self.backend)
        publisher = Publisher(registry, lambda: ())
        runner = RequestRunner(registry)
        clock: Callable[[], float] = asyncio.get_running_loop().time
        self.dialer = TunnelDialer(
            self.membership,
            lambda: GatewaySession(runner, publisher, registry.carry_out, self.membership.renew),
            dial_with(DialSettings(url=url), clock),
            clock=clock,
            chance=lambda: 0.0,
        )


async def test_over_a_real_socket_it_joins_serves_and_leaves(tmp_path: Path, no_leaks: None) -> None:
    acceptor = Doorman()
    async with accepting(acceptor) as url, asyncio.TaskGroup() as tasks:
        real = Real(url, tmp_path, tasks, TOKEN)
        running = tasks.create_task(real.dialer.run())
        state = await acceptor.listener.until("state")
        assert [deployment.model for deployment in state.deployments] == ["demo"]
        assert await acceptor.listener.until("slots") == {"d1": 2}
        answer = Recorder()
        stream = acceptor.tunnels[0].endpoint.open(request_head(), answer)
        stream.end()
        real.backend.response.pieces.put_nowait(b"data: x\n\n")
        real.backend.response.pieces.put_nowait(None)
        await answer.until("end")
        assert answer.body == b"data: x\n\n"
        real.dialer.close("the agent stopped")
        await running
        await acceptor.listener.until("session_closed")


async def test_over_a_real_socket_a_cut_is_answered_at_once(tmp_path: Path, no_leaks: None) -> None:
    acceptor = Doorman()
    async with accepting(acceptor) as url, asyncio.TaskGroup() as tasks:
        real = Real(url, tmp_path, tasks)
        running = tasks.create_task(real.dialer.run())
        await acceptor.listener.until("slots")
        acceptor.tunnels[0].abort()
        await until(lambda: acceptor.listener.names().count("attached") == 2)
        real.dialer.close("done")
        running.cancel()


async def test_over_a_real_socket_a_no_is_final(tmp_path: Path, no_leaks: None) -> None:
    acceptor = Doorman(HandshakeRejected(ErrorCode.UNAUTHENTICATED, "expired"))
    async with accepting(acceptor) as url, asyncio.TaskGroup() as tasks:
        with pytest.raises(Rejected, match="expired"):
            await Real(url, tmp_path, tasks).dialer.run()


async def test_over_a_real_socket_the_wrong_gateway_is_not_joined(tmp_path: Path, no_leaks: None) -> None:
    async with accepting(Doorman()) as url, asyncio.TaskGroup() as tasks:
        other = JoinToken.new(OTHER_GATEWAY.fingerprint)
        with pytest.raises(Rejected, match="the join token is for gateway"):
            await Real(url, tmp_path, tasks, other).dialer.run()


async def test_a_socks_proxy_without_its_package_says_which(monkeypatch: pytest.MonkeyPatch) -> None:
    async def dial(*args: Any, **options: Any) -> None:
        raise ImportError("python-socks is required")

    monkeypatch.setattr("agent.link.dialer.dial", dial)
    handshake: Any = None
    with pytest.raises(Rejected, match=r"trunkline\[socks\]"):
        await dial_with(DialSettings(url="wss://x/tunnel", proxy="socks5://p"), ManualClock())(
            handshake, Recorder(), None
        )


async def test_closing_between_two_attempts_ends_it(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.plan = [DOWN]

    async def sleep(delay_s: float) -> None:
        if delay_s:
            world.dialer.close("bye")

    world.dialer._sleep = sleep
    await asyncio.wait_for(world.dialer.run(), 5)
    assert not world.tunnels


async def test_closing_while_the_gateway_is_dialled_ends_it(tmp_path: Path) -> None:
    world = World(tmp_path)

    async def dial(*arguments: Any) -> LiveTunnel:
        world.dialer.close("bye")
        return await world._dial(*arguments)

    world.dialer._dial = dial
    await asyncio.wait_for(world.dialer.run(), 5)
    assert world.tunnels[0].endpoint.closed


async def test_a_window_that_ends_as_the_session_goes_on_ends_nothing(tmp_path: Path) -> None:
    world = World(tmp_path)
    session = world.dialer._new_session()
    endpoint = Joined(session, world.gateway).agent
    handle = asyncio.get_running_loop().call_later(60, lambda: None)
    world.dialer._kept = _Kept("s", session, endpoint, handle)
    world.dialer._expired("no tunnel")
    assert not endpoint.closed
    endpoint.suspend(LOST)
    world.dialer._expired("no tunnel")
    assert endpoint.closed
    assert handle.cancelled()
