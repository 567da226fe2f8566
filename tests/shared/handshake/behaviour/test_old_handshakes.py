"""Agents and gateways of earlier releases: conversations recorded then, held against the code of now.

``recorded/`` is never made anew: a release adds a file when it changes what is said.
"""

from pathlib import Path
from typing import Any

import orjson
import pytest

from shared.handshake import AgentHandshake, GatewayHandshake, ResumeRequest
from shared.protocol.errors import ErrorCode, HandshakeRejected
from shared.protocol.frames import FrameType
from shared.protocol.peers import DEMAND, GPU_SECONDS, PROGRESS, UPLINK, GatewayPeer
from tests.support.identities import (
    AGENT_KEY,
    GATEWAY,
    NAME,
    TOKEN,
    WALL_S,
    certificate_of,
    enrolled_agent,
    gateway_side,
)

RECORDED = sorted((Path(__file__).parent / "recorded").glob("handshake-*.json"))
releases = pytest.mark.parametrize("path", RECORDED, ids=lambda path: path.stem)


def frames(path: Path, title: str) -> dict[str, bytes]:
    recorded: dict[str, Any] = orjson.loads(path.read_bytes())
    for conversation in recorded["conversations"]:
        if conversation["title"] == title:
            return {entry["frame"]: bytes.fromhex(entry["payload"]) for entry in conversation["frames"]}
    raise AssertionError(f"{path} has no conversation {title!r}")


def test_there_is_something_recorded() -> None:
    assert [path.stem for path in RECORDED][:1] == ["handshake-0.1.0"]


@releases
@pytest.mark.parametrize("title", ["an agent joins", "an agent returns"])
def test_an_old_agent_gets_in_and_a_session_of_its_own(path: Path, title: str) -> None:
    said = frames(path, title)
    gateway: GatewayHandshake = gateway_side()
    assert gateway.challenge() == said["CHALLENGE"], "what an old agent reads first has not changed"
    hello = gateway.receive_hello(said["HELLO"], WALL_S)
    assert (hello.name, hello.version, hello.session) == (NAME, 1, None)
    if hello.join is not None:
        assert gateway.verify_join(TOKEN.verifier())


@releases
def test_an_old_gateways_welcome_begins_a_new_session(path: Path) -> None:
    said = frames(path, "an agent returns")
    agent = enrolled_agent()
    assert agent.receive_challenge(said["CHALLENGE"]) == said["HELLO"]
    welcome = agent.receive_answer(FrameType.WELCOME, said["WELCOME"], WALL_S)
    assert (welcome.session_id, welcome.received) == ("s-1", None)


def test_a_gateway_that_ignores_the_session_asked_for_answers_with_a_new_one() -> None:
    """As gateways of 0.1.0 do, which know of no resumption."""
    gateway = gateway_side()
    agent = enrolled_agent(session=ResumeRequest("s-0", 17))
    hello = gateway.receive_hello(agent.receive_challenge(gateway.challenge()), WALL_S)
    assert hello.session == ResumeRequest("s-0", 17)
    welcome = agent.receive_answer(
        FrameType.WELCOME, gateway.welcome("s-1", 2, None, None, 10.0, 0.0), WALL_S
    )
    assert (welcome.session_id, welcome.received, welcome.resume_window_s) == ("s-1", None, 0.0)


def test_a_session_that_goes_on_says_what_was_received() -> None:
    gateway = gateway_side()
    agent = enrolled_agent(session=ResumeRequest("s-0", 17))
    gateway.receive_hello(agent.receive_challenge(gateway.challenge()), WALL_S)
    payload = gateway.welcome("s-0", 2, None, None, 10.0, 30.0, received=4)
    assert agent.receive_answer(FrameType.WELCOME, payload, WALL_S).received == 4


def _dialled_parent(
    gateway: GatewayHandshake, optional: tuple[str, ...] = ()
) -> tuple[AgentHandshake, bytes]:
    """A gateway that joins ``gateway`` as its agent, and the WELCOME that it is sent (PROTOCOL §7.6)."""
    child = AgentHandshake(
        AGENT_KEY,
        NAME,
        b"\x03" * 32,
        certificate_of(NAME, AGENT_KEY).der,
        pinned_fingerprint=GATEWAY.fingerprint,
        required=(UPLINK,),
        optional=optional,
    )
    gateway.receive_hello(child.receive_challenge(gateway.challenge()), WALL_S)
    return child, gateway.welcome("s-1", 1, None, None, 10.0)


@pytest.mark.parametrize(
    ("process", "agreed"), [(None, (UPLINK,)), (GatewayPeer("a", 1), (GPU_SECONDS, UPLINK))]
)
def test_a_gateway_agrees_to_be_a_parent_whether_it_is_one_process_or_several(
    process: GatewayPeer | None, agreed: tuple[str, ...]
) -> None:
    child, welcome = _dialled_parent(gateway_side(process=process))
    found = child.receive_answer(FrameType.WELCOME, welcome, WALL_S).capabilities
    assert set(agreed) <= set(found)
    assert (len(found) == 1) is (process is None)


@pytest.mark.parametrize("process", [None, GatewayPeer("a", 1)])
def test_a_parent_tells_a_child_of_this_version_what_waits_and_an_earlier_one_of_one_process_does_not(
    process: GatewayPeer | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    child, welcome = _dialled_parent(gateway_side(process=process), (DEMAND,))
    assert DEMAND in child.receive_answer(FrameType.WELCOME, welcome, WALL_S).capabilities
    if process is None:
        monkeypatch.setattr("shared.handshake.gateway.DEMAND", "not known there")
        child, welcome = _dialled_parent(gateway_side(), (DEMAND,))
        assert child.receive_answer(FrameType.WELCOME, welcome, WALL_S).capabilities == (UPLINK,)


def test_a_gateway_hangs_up_on_a_parent_of_an_earlier_release_and_comes_again_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(GatewayHandshake, "capabilities", ())
    child, welcome = _dialled_parent(gateway_side())
    with pytest.raises(HandshakeRejected, match="upgrade it") as caught:
        child.receive_answer(FrameType.WELCOME, welcome, WALL_S)
    assert caught.value.code is ErrorCode.VERSION
    assert caught.value.retry_after_s is not None


def test_an_ordinary_agent_asks_for_no_capability_of_a_gateway_of_one_process() -> None:
    gateway = gateway_side()
    gateway.receive_hello(enrolled_agent().receive_challenge(gateway.challenge()), WALL_S)
    assert gateway.capabilities == ()


def test_an_agent_of_now_and_a_gateway_of_one_process_agree_on_progress() -> None:
    gateway, agent = gateway_side(), enrolled_agent(optional=(PROGRESS,))
    gateway.receive_hello(agent.receive_challenge(gateway.challenge()), WALL_S)
    payload = gateway.welcome("s-1", 1, None, None, 10.0)
    assert agent.receive_answer(FrameType.WELCOME, payload, WALL_S).capabilities == (PROGRESS,)


def test_an_agent_of_now_says_no_progress_to_a_gateway_of_an_earlier_release(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(GatewayHandshake, "capabilities", ())
    gateway, agent = gateway_side(), enrolled_agent(optional=(PROGRESS,))
    gateway.receive_hello(agent.receive_challenge(gateway.challenge()), WALL_S)
    payload = gateway.welcome("s-1", 1, None, None, 10.0)
    assert agent.receive_answer(FrameType.WELCOME, payload, WALL_S).capabilities == ()


@releases
def test_an_agent_of_an_earlier_release_agrees_on_no_progress(path: Path) -> None:
    gateway = gateway_side()
    gateway.challenge()
    gateway.receive_hello(frames(path, "an agent returns")["HELLO"], WALL_S)
    assert gateway.capabilities == ()
