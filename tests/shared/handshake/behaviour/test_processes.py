"""A gateway of several processes, and one that is old or is one process (PROTOCOL §7.5, §8.3 to §8.5)."""

from collections.abc import Callable

import orjson
import pytest

from shared.handshake import AgentHandshake, ResumeRequest
from shared.handshake.messages import Challenge, HelloClaims, WelcomeTerms
from shared.protocol import limits
from shared.protocol.errors import HandshakeError, HandshakeMalformed
from shared.protocol.frames import FrameType
from shared.protocol.peers import CAPABILITIES, GatewayPeer
from tests.support.identities import (
    AGENT_KEY,
    AGENT_LIMITS,
    AGENT_NONCE,
    GATEWAY,
    NAME,
    PROCESSES,
    WALL_S,
    certificate_of,
    enrolled_agent,
    gateway_side,
    greet,
)

Landed = Callable[[Challenge], ResumeRequest | None]


def agent_that(landed: Landed) -> AgentHandshake:
    return AgentHandshake(
        AGENT_KEY,
        NAME,
        AGENT_NONCE,
        certificate_of().der,
        pinned_fingerprint=GATEWAY.fingerprint,
        limits=AGENT_LIMITS,
        session=ResumeRequest("s-0", 1),
        landed=landed,
    )


def test_the_agent_learns_the_process_its_peers_and_what_is_agreed_on() -> None:
    agent = enrolled_agent()
    greeted = greet(agent, gateway_side(process=PROCESSES[0]))
    assert (agent.process, agent.incarnation) == ("a", 3)
    assert greeted.gateway.capabilities == CAPABILITIES
    payload = greeted.gateway.welcome("s-1", 1, None, None, 10.0, peers=PROCESSES)
    welcome = agent.receive_answer(FrameType.WELCOME, payload, WALL_S)
    assert (welcome.peers, welcome.capabilities) == (PROCESSES, CAPABILITIES)


def test_to_a_gateway_that_is_one_process_nothing_of_this_is_said() -> None:
    agent = enrolled_agent()
    greeted = greet(agent)
    payload = greeted.answer_with_welcome(None)
    welcome = agent.receive_answer(FrameType.WELCOME, payload, WALL_S)
    assert agent.process is None
    assert (welcome.peers, welcome.capabilities) == ((), ())
    for said in (greeted.challenge, greeted.hello_payload, payload):
        assert not {"process", "incarnation", "capabilities", "peers"} & set(orjson.loads(said[64:]))


def test_an_agent_without_capabilities_is_told_of_none() -> None:
    """As agents are that know of one process only: they ignore what they do not know of CHALLENGE."""
    gateway = gateway_side(process=PROCESSES[0])
    old = enrolled_agent()
    challenge = gateway.challenge()
    claims = HelloClaims.from_body(old.receive_challenge(challenge)[64:])
    assert claims.capabilities
    said = orjson.loads(claims.to_body())
    del said["capabilities"]
    assert HelloClaims.from_body(orjson.dumps(said)).capabilities == ()
    gateway.hello = None
    assert gateway.capabilities == ()


def test_capabilities_that_are_not_known_are_ignored() -> None:
    greeted = greet(enrolled_agent(), gateway_side(process=PROCESSES[0]))
    hello = greeted.hello
    object.__setattr__(hello, "capabilities", ("later", "demand"))
    assert greeted.gateway.capabilities == ("demand",)


def test_who_landed_chooses_the_session_to_resume() -> None:
    asked = {"a": ResumeRequest("s-a", 7)}
    gateway = gateway_side(process=PROCESSES[0])
    hello = gateway.receive_hello(
        agent_that(lambda challenge: asked.get(challenge.process or "")).receive_challenge(
            gateway.challenge()
        ),
        WALL_S,
    )
    assert hello.session == ResumeRequest("s-a", 7)


def test_who_landed_wrong_hangs_up_without_a_hello() -> None:
    class Held(HandshakeError):
        pass

    def refuse(challenge: Challenge) -> ResumeRequest | None:
        raise Held(challenge.process)

    agent = agent_that(refuse)
    challenge = gateway_side(process=PROCESSES[0]).challenge()
    with pytest.raises(Held):
        agent.receive_challenge(challenge)
    with pytest.raises(HandshakeMalformed, match="out of turn"):
        agent.receive_challenge(challenge)


def test_who_landed_is_asked_of_verified_challenges_only() -> None:
    landings: list[str | None] = []
    agent = agent_that(lambda challenge: landings.append(challenge.process))
    forged = bytearray(gateway_side(process=PROCESSES[0]).challenge())
    forged[-3] ^= 1
    with pytest.raises(HandshakeError):
        agent.receive_challenge(bytes(forged))
    assert landings == []


def test_a_welcome_with_all_peers_and_a_certificate_fits() -> None:
    longest = GatewayPeer("p" * 48, 2**53 - 1, "wss://" + "h" * (limits.PEER_URL_CHARS - 6))
    terms = WelcomeTerms(
        session_id="s" * 64,
        generation=1,
        limits={"l" * 60 + str(n): 2**53 - 1 for n in range(32)},
        certificate=bytes(4096),
        heartbeat_s=10.0,
        resume_window_s=30.0,
        capabilities=CAPABILITIES,
        peers=(longest,) * limits.PEERS,
    )
    body = terms.to_body()
    assert 64 + len(body) <= limits.HANDSHAKE_MESSAGE_BYTES - limits.FRAME_HEADER_BYTES
    assert WelcomeTerms.from_body(body) == terms


@pytest.mark.parametrize(
    "change",
    [
        {"peers": [{"process": "a", "incarnation": 1}] * (limits.PEERS + 1)},
        {"peers": [{"process": "A", "incarnation": 1}]},
        {"capabilities": ["x"] * 33},
        {"capabilities": ["x" * 33]},
        {"capabilities": "demand"},
    ],
)
def test_more_than_is_allowed_is_malformed(change: dict[str, object]) -> None:
    terms = WelcomeTerms(session_id="s", generation=1, limits={}, heartbeat_s=10.0, resume_window_s=30.0)
    with pytest.raises(HandshakeMalformed):
        WelcomeTerms.from_body(orjson.dumps(orjson.loads(terms.to_body()) | change))
