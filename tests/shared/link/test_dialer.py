"""One tunnel is kept up, for as long as the gateway wants this agent."""

import asyncio
import base64
import json
import socket
from pathlib import Path
from typing import Any

import pytest
import structlog

from shared.identity import issue_certificate
from shared.identity.certificates import read_kept
from shared.link.backoff import MISDIRECTED_BASE_S, STEADY_S, SUSPICIOUS_S
from shared.link.dialer import (
    DialSettings,
    DialTarget,
    LandedElsewhere,
    LiveTunnel,
    Rejected,
    _Kept,
    dial_with,
)
from shared.link.membership import MembershipError
from shared.protocol.errors import (
    DialFailed,
    DialMisdirected,
    ErrorCode,
    GatewayUntrusted,
    HandshakeRejected,
    TrunklineError,
    TunnelClosed,
)
from tests.agent.support.canned import until
from tests.agent.support.joined import Joined
from tests.shared.link.dialled_world import DialledWorld
from tests.support.clock import ManualClock
from tests.support.identities import GATEWAY, TOKEN, WALL_S
from tests.support.tunnels import Recorder

OUT_OF_DATE = HandshakeRejected(ErrorCode.UNAUTHENTICATED, "the certificate expired", 60.0)
SETTLED = HandshakeRejected(ErrorCode.UNAUTHENTICATED, "this gateway made no such join token")


LOST = TunnelClosed("connection closed by the peer")
DOWN = DialFailed("connection refused")


async def test_the_first_attempt_is_made_at_once_and_joins(tmp_path: Path) -> None:
    world = DialledWorld(tmp_path)
    assert await world.until_up() == [0.0]
    assert world.membership.joined
    assert world.certificates == [False]


async def test_a_member_shows_its_certificate(tmp_path: Path) -> None:
    await DialledWorld(tmp_path).until_up()
    world = DialledWorld(tmp_path, join=None)
    await world.until_up()
    assert world.certificates == [True]


async def test_the_loss_of_a_good_tunnel_is_answered_at_once(tmp_path: Path) -> None:
    assert await DialledWorld(tmp_path).until_up((LOST, STEADY_S)) == [0.0, 0.0]


class OneOfTwo(DialTarget):
    sessions = 2


async def test_where_another_process_answers_it_dials_again_soon(tmp_path: Path) -> None:
    plan = DialMisdirected("421"), LandedElsewhere("b answered in place of a")
    assert await DialledWorld(tmp_path, target=OneOfTwo()).until_up(*plan) == [
        0.0,
        MISDIRECTED_BASE_S,
        MISDIRECTED_BASE_S,
    ]


async def test_what_serves_other_names_than_that_of_the_only_process_is_a_failure(tmp_path: Path) -> None:
    with structlog.testing.capture_logs() as logs:
        assert await DialledWorld(tmp_path).until_up(DialMisdirected("421")) == [0.0, 1.0]
    assert logs[0]["reason"] == "421"


async def test_failures_are_answered_with_short_waits_at_first(tmp_path: Path) -> None:
    waits = await DialledWorld(tmp_path).until_up((LOST, 60.0), DOWN, DOWN, DOWN, (LOST, 0.5))
    assert waits == [0.0, 0.0, 1.0, 1.0, 1.0, 1.0]


async def test_where_nobody_listens_waits_are_shorter(tmp_path: Path) -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        handshake = DialledWorld(tmp_path / "other").membership.handshake("trunkline test")
        settings = DialSettings(url=f"ws://127.0.0.1:{silent.getsockname()[1]}/tunnel")
        with pytest.raises(DialFailed) as refused:
            await dial_with(settings, ManualClock())(handshake, Recorder(), None)
    assert await DialledWorld(tmp_path).until_up((LOST, 60.0), refused.value, DOWN) == [0.0, 0.0, 0.5, 1.0]


async def test_what_the_gateway_says_about_when_to_come_wins(tmp_path: Path) -> None:
    busy = HandshakeRejected(ErrorCode.OVERLOADED, "too many agents", 20.0)
    assert await DialledWorld(tmp_path).until_up(busy, DOWN) == [0.0, 25.0, 1.0]


async def test_a_gateway_that_restarts_is_given_a_moment(tmp_path: Path) -> None:
    going = TunnelClosed("restarting", ErrorCode.DRAINING)
    assert await DialledWorld(tmp_path).until_up((going, 3600.0)) == [0.0, 1.0]


async def test_a_twin_is_not_fought(tmp_path: Path) -> None:
    replaced = TunnelClosed("a newer tunnel", ErrorCode.REPLACED)
    waits = await DialledWorld(tmp_path).until_up((replaced, 3600.0))
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
        await DialledWorld(tmp_path).until_up(error)


async def test_a_revocation_while_connected_ends_it(tmp_path: Path) -> None:
    revoked = TunnelClosed("agent gpu-1 was revoked", ErrorCode.REVOKED)
    with pytest.raises(Rejected, match="was revoked"):
        await DialledWorld(tmp_path).until_up((revoked, 60.0))


async def test_a_member_waits_for_its_gateway_when_another_answers(tmp_path: Path) -> None:
    await DialledWorld(tmp_path).until_up()
    waits = await DialledWorld(tmp_path).until_up(GatewayUntrusted("another gateway answered"))
    assert waits == [0.0, 1.0]


async def test_a_refused_certificate_is_replaced_with_the_token_at_once(tmp_path: Path) -> None:
    await DialledWorld(tmp_path).until_up()
    world = DialledWorld(tmp_path)
    assert await world.until_up(SETTLED) == [0.0, 0.0]
    assert world.certificates == [False]
    with pytest.raises(Rejected):
        await DialledWorld(tmp_path).until_up(SETTLED, SETTLED)


@pytest.mark.parametrize("join", [None, TOKEN.encode()], ids=["certificate", "and-token"])
async def test_a_gateway_whose_clock_jumped_is_asked_again_until_it_is_right(
    tmp_path: Path, join: str | None
) -> None:
    await DialledWorld(tmp_path).until_up()
    world = DialledWorld(tmp_path, join=join)
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
    await DialledWorld(tmp_path).until_up()
    path = tmp_path / "membership.json"
    value = json.loads(path.read_bytes())
    key = read_kept(base64.b64decode(value["certificate"])).public_key
    behind = issue_certificate(GATEWAY, "gpu-1", key, 2, WALL_S - 400 * 86_400).der
    value |= {
        "former_certificates": [value["certificate"]],
        "certificate": base64.b64encode(behind).decode(),
    }
    path.write_text(json.dumps(value))
    world = DialledWorld(tmp_path, join=None)
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

    monkeypatch.setattr("shared.link.membership.MemberRecord.write", full)
    with pytest.raises(MembershipError, match="disk full"):
        await DialledWorld(tmp_path / "a").until_up()
    monkeypatch.undo()
    await DialledWorld(tmp_path / "b").until_up()
    monkeypatch.setattr("shared.link.membership.MemberRecord.write", full)
    await DialledWorld(tmp_path / "b").until_up(SETTLED)


async def test_the_gateway_hears_of_slots_on_every_new_tunnel(tmp_path: Path) -> None:
    world = DialledWorld(tmp_path)
    world.plan = [(LOST, 60.0)]
    async with world.dialling():
        await until(lambda: world.gateway.names().count("slots") == 2)
    assert world.tunnels[1].aborted


async def test_closing_ends_the_session_in_order(tmp_path: Path) -> None:
    world = DialledWorld(tmp_path)
    running = asyncio.ensure_future(world.dialer.run())
    await until(lambda: world.dialer.session)
    world.dialer.close("bye")
    await running
    assert not world.tunnels[0].aborted
    assert world.waits == [0.0]


async def test_every_command_is_answered_in_turn(tmp_path: Path) -> None:
    world = DialledWorld(tmp_path)
    async with world.dialling():
        await until(lambda: world.dialer.session)
        assert world.dialer.session is not None
        world.dialer.session.on_command({"id": 4, "verb": "dance"})
        world.dialer.session.on_command({"id": 5, "verb": "load", "deployment": "e/m"})
        world.dialer.session.drain("stopping", 5.0)
        await until(lambda: world.gateway.names().count("result") == 2)
        results = [result for name, result in world.gateway.calls if name == "result"]
        assert [(result["id"], result["ok"]) for result in results] == [(4, False), (5, False)]
        assert "verb" in results[0]["error"]
        assert "not one that is loaded and unloaded" in results[1]["error"]
        assert (await world.gateway.until("drain")).reason == "stopping"


async def test_a_socks_proxy_without_its_package_says_which(monkeypatch: pytest.MonkeyPatch) -> None:
    async def dial(*args: Any, **options: Any) -> None:
        raise ImportError("python-socks is required")

    monkeypatch.setattr("shared.link.dialer.dial", dial)
    handshake: Any = None
    with pytest.raises(Rejected, match=r"trunkline\[socks\]"):
        await dial_with(DialSettings(url="wss://x/tunnel", proxy="socks5://p"), ManualClock())(
            handshake, Recorder(), None
        )


async def test_closing_between_two_attempts_ends_it(tmp_path: Path) -> None:
    world = DialledWorld(tmp_path)
    world.plan = [DOWN]

    async def sleep(delay_s: float) -> None:
        if delay_s:
            world.dialer.close("bye")

    world.dialer._sleep = sleep
    await asyncio.wait_for(world.dialer.run(), 60)
    assert not world.tunnels


async def test_closing_while_the_gateway_is_dialled_ends_it(tmp_path: Path) -> None:
    world = DialledWorld(tmp_path)

    async def dial(*arguments: Any) -> LiveTunnel:
        world.dialer.close("bye")
        return await world._dial(*arguments)

    world.dialer._dial = dial
    await asyncio.wait_for(world.dialer.run(), 60)
    assert world.tunnels[0].endpoint.closed


async def test_a_window_that_ends_as_the_session_goes_on_ends_nothing(tmp_path: Path) -> None:
    world = DialledWorld(tmp_path)
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


async def test_who_hears_that_the_gateway_was_started_anew_dials_at_once(tmp_path: Path) -> None:
    world = DialledWorld(tmp_path)
    world.plan = [DOWN] * 30
    asleep = asyncio.Event()

    async def sleep(delay_s: float) -> None:
        world.waits.append(delay_s)
        if delay_s > 10.0:
            asleep.set()
            await asyncio.get_running_loop().create_future()

    world.dialer._sleep = sleep
    async with world.dialling():
        await asyncio.wait_for(asleep.wait(), 60)
        tried = 30 - len(world.plan)
        world.dialer.hurry()
        await asyncio.wait_for(world.up.wait(), 60)
    after = world.waits[world.waits.index(max(world.waits)) + 1 :]
    assert tried > 20
    assert max(after, default=0.0) <= 1.0
