"""Agents and gateways of earlier releases: conversations recorded then, held against the code of now.

``recorded/`` is never made anew: a release adds a file when it changes what is said.
"""

from pathlib import Path
from typing import Any

import orjson
import pytest

from shared.handshake import AgentHandshake, GatewayHandshake, ResumeRequest
from shared.protocol.frames import FrameType
from tests.support.identities import (
    AGENT_KEY,
    AGENT_LIMITS,
    AGENT_NONCE,
    GATEWAY,
    NAME,
    TOKEN,
    WALL_S,
    certificate_of,
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


def returning_agent() -> AgentHandshake:
    return AgentHandshake(
        AGENT_KEY,
        NAME,
        AGENT_NONCE,
        certificate_of().der,
        pinned_fingerprint=GATEWAY.fingerprint,
        software="trunkline 0",
        limits=AGENT_LIMITS,
    )


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
    agent = returning_agent()
    assert agent.receive_challenge(said["CHALLENGE"]) == said["HELLO"]
    welcome = agent.receive_answer(FrameType.WELCOME, said["WELCOME"], WALL_S)
    assert (welcome.session_id, welcome.received) == ("s-1", None)


def test_a_gateway_that_ignores_the_session_asked_for_answers_with_a_new_one() -> None:
    """As gateways of 0.1.0 do, which know of no resumption."""
    gateway = gateway_side()
    agent = AgentHandshake(
        AGENT_KEY,
        NAME,
        AGENT_NONCE,
        certificate_of().der,
        pinned_fingerprint=GATEWAY.fingerprint,
        session=ResumeRequest("s-0", 17),
    )
    hello = gateway.receive_hello(agent.receive_challenge(gateway.challenge()), WALL_S)
    assert hello.session == ResumeRequest("s-0", 17)
    welcome = agent.receive_answer(
        FrameType.WELCOME, gateway.welcome("s-1", 2, None, None, 10.0, 0.0), WALL_S
    )
    assert (welcome.session_id, welcome.received, welcome.resume_window_s) == ("s-1", None, 0.0)


def test_a_session_that_goes_on_says_what_was_received() -> None:
    gateway = gateway_side()
    agent = AgentHandshake(
        AGENT_KEY,
        NAME,
        AGENT_NONCE,
        certificate_of().der,
        pinned_fingerprint=GATEWAY.fingerprint,
        session=ResumeRequest("s-0", 17),
    )
    gateway.receive_hello(agent.receive_challenge(gateway.challenge()), WALL_S)
    payload = gateway.welcome("s-0", 2, None, None, 10.0, 30.0, received=4)
    assert agent.receive_answer(FrameType.WELCOME, payload, WALL_S).received == 4
