"""The handshake in order, and who is believed in it."""

import orjson
import pytest

from shared.handshake import AgentHandshake
from shared.handshake.transcript import Transcript
from shared.identity import JoinToken, public_bytes
from shared.protocol.errors import (
    CertificateInvalid,
    ErrorCode,
    GatewayUntrusted,
    HandshakeRejected,
    SignatureInvalid,
)
from shared.protocol.frames import FrameType
from tests.support.identities import (
    AGENT_KEY,
    AGENT_LIMITS,
    AGENT_NONCE,
    GATEWAY,
    GATEWAY_LIMITS,
    NAME,
    OTHER_GATEWAY,
    TOKEN,
    WALL_S,
    certificate_of,
    enrolled_agent,
    gateway_side,
    greet,
    joining_agent,
    key_of,
)

# --- In order ---


def test_an_agent_joins_with_a_token_and_gets_its_certificate() -> None:
    greeted = greet(joining_agent())
    assert greeted.hello.certificate is None
    assert greeted.hello.join is not None
    assert greeted.hello.join.token_id == TOKEN.id_text
    assert greeted.gateway.verify_join(TOKEN.verifier())
    certificate = certificate_of()
    payload = greeted.answer_with_welcome(certificate.der)
    welcome = greeted.agent.receive_answer(FrameType.WELCOME, payload, WALL_S)
    assert welcome.certificate == certificate


def test_an_agent_returns_with_its_certificate() -> None:
    greeted = greet(enrolled_agent())
    assert greeted.hello.certificate == certificate_of()
    assert greeted.hello.join is None
    payload = greeted.gateway.welcome("s-9", 4, None, {"open_streams": 7}, 5.0, 30.0)
    welcome = greeted.agent.receive_answer(FrameType.WELCOME, payload, WALL_S)
    assert (welcome.session_id, welcome.generation, welcome.certificate) == ("s-9", 4, None)
    assert (welcome.heartbeat_s, welcome.resume_window_s) == (5.0, 30.0)
    assert welcome.limits == {"open_streams": 7}


def test_each_side_learns_what_the_other_said_of_itself() -> None:
    greeted = greet(enrolled_agent())
    hello = greeted.hello
    assert (hello.name, hello.public_key, hello.nonce) == (NAME, public_bytes(AGENT_KEY), AGENT_NONCE)
    assert (hello.version, hello.software, hello.session) == (1, "trunkline 0", None)
    assert hello.limits == AGENT_LIMITS
    welcome = greeted.agent.receive_answer(FrameType.WELCOME, greeted.answer_with_welcome(None), WALL_S)
    assert welcome.limits == GATEWAY_LIMITS


def test_a_rejected_agent_is_told_why_and_when_to_come_back() -> None:
    greeted = greet(enrolled_agent())
    payload = greeted.gateway.reject(ErrorCode.OVERLOADED, "too many agents just now", 2.5)
    with pytest.raises(HandshakeRejected, match="too many agents") as caught:
        greeted.agent.receive_answer(FrameType.REJECT, payload, WALL_S)
    assert (caught.value.code, caught.value.retry_after_s) == (ErrorCode.OVERLOADED, 2.5)


def test_a_reason_is_cut_and_cleaned_before_it_is_sent() -> None:
    greeted = greet(enrolled_agent())
    payload = greeted.gateway.reject(ErrorCode.REVOKED, "a\x1b[31m\n" + "b" * 1000)
    with pytest.raises(HandshakeRejected) as caught:
        greeted.agent.receive_answer(FrameType.REJECT, payload, WALL_S)
    assert caught.value.reason == "a [31m " + "b" * 505
    assert caught.value.retry_after_s is None


# --- Who is believed ---


def test_the_agent_refuses_a_gateway_whose_key_is_not_the_pinned_one() -> None:
    with pytest.raises(GatewayUntrusted, match=f"belongs to gateway {GATEWAY.id}, but"):
        enrolled_agent().receive_challenge(gateway_side(OTHER_GATEWAY).challenge())


def test_the_agent_refuses_a_gateway_that_its_token_does_not_name() -> None:
    with pytest.raises(GatewayUntrusted, match=f"join token is for gateway {GATEWAY.id}, but"):
        joining_agent().receive_challenge(gateway_side(OTHER_GATEWAY).challenge())


def test_the_agent_refuses_a_gateway_that_shows_a_key_it_does_not_hold() -> None:
    transcript = Transcript()
    body = gateway_side().challenge()[64:]
    forged = transcript.seal(FrameType.CHALLENGE, body, OTHER_GATEWAY.sign)
    with pytest.raises(SignatureInvalid):
        enrolled_agent().receive_challenge(forged)


def test_a_replayed_challenge_gets_no_welcome_from_whoever_replays_it() -> None:
    recorded = greet(enrolled_agent())
    old_welcome = recorded.answer_with_welcome(None)
    fresh = AgentHandshake(
        AGENT_KEY, NAME, bytes(32), certificate_of().der, pinned_fingerprint=GATEWAY.fingerprint
    )
    fresh.receive_challenge(recorded.challenge)
    with pytest.raises(SignatureInvalid):
        fresh.receive_answer(FrameType.WELCOME, old_welcome, WALL_S)


def test_a_recorded_hello_is_worth_nothing_at_the_next_challenge() -> None:
    recorded = greet(enrolled_agent())
    gateway = gateway_side(nonce=bytes(32))
    gateway.challenge()
    with pytest.raises(SignatureInvalid):
        gateway.receive_hello(recorded.hello_payload, WALL_S)


def test_a_hello_signed_by_another_key_than_it_shows_is_refused() -> None:
    gateway = gateway_side()
    transcript = Transcript()
    transcript.append(FrameType.CHALLENGE, gateway.challenge())
    body = greet(enrolled_agent()).hello_payload[64:]
    forged = transcript.seal(FrameType.HELLO, body, key_of("thief").sign)
    with pytest.raises(SignatureInvalid):
        gateway.receive_hello(forged, WALL_S)


def test_a_stolen_certificate_without_its_key_is_refused() -> None:
    thief = key_of("thief")
    with pytest.raises(CertificateInvalid, match="another key"):
        greet(enrolled_agent(certificate_of(), key=thief))


def test_a_certificate_is_worth_nothing_under_another_name() -> None:
    with pytest.raises(CertificateInvalid, match="for agent 'gpu-7', not for 'gpu-8'"):
        greet(enrolled_agent(certificate_of(), name="gpu-8"))


def test_an_expired_certificate_is_refused() -> None:
    with pytest.raises(CertificateInvalid, match="expired"):
        greet(enrolled_agent(), wall_s=WALL_S + 91 * 86_400)


def test_a_certificate_that_a_clock_ahead_has_made_is_good() -> None:
    assert greet(enrolled_agent(), wall_s=WALL_S - 80 * 86_400).hello.certificate


def test_a_certificate_of_another_gateway_is_refused() -> None:
    with pytest.raises(CertificateInvalid, match="not issued by this gateway"):
        greet(enrolled_agent(certificate_of(gateway=OTHER_GATEWAY)))


def test_a_join_proof_verifies_for_its_own_token_only() -> None:
    greeted = greet(joining_agent())
    other = JoinToken(TOKEN.id, bytes(16), TOKEN.fingerprint)
    assert greeted.gateway.verify_join(TOKEN.verifier())
    assert not greeted.gateway.verify_join(other.verifier())
    assert not greeted.gateway.verify_join(bytes(32))
    assert not greeted.gateway.verify_join(b"")


def test_a_hello_with_a_certificate_proves_no_token() -> None:
    assert not greet(enrolled_agent()).gateway.verify_join(TOKEN.verifier())


@pytest.mark.parametrize("changed", ["name", "key"])
def test_a_join_proof_seen_on_the_wire_enrols_nobody_else(changed: str) -> None:
    """A relay that reads HELLO and puts its own key or name there cannot reuse the proof."""
    seen = orjson.loads(greet(joining_agent()).hello_payload[64:])
    thief = key_of("thief")
    name, key = ("thief", AGENT_KEY) if changed == "name" else (NAME, thief)
    other = orjson.loads(greet(joining_agent(name=name, key=key)).hello_payload[64:])
    gateway = gateway_side()
    transcript = Transcript()
    transcript.append(FrameType.CHALLENGE, gateway.challenge())
    body = orjson.dumps(other | {"join": seen["join"]})
    gateway.receive_hello(transcript.seal(FrameType.HELLO, body, key.sign), WALL_S)
    assert not gateway.verify_join(TOKEN.verifier())


def test_the_agent_refuses_a_welcome_of_another_signer() -> None:
    greeted = greet(enrolled_agent())
    transcript = Transcript()
    transcript.append(FrameType.CHALLENGE, greeted.challenge)
    transcript.append(FrameType.HELLO, greeted.hello_payload)
    body = greeted.answer_with_welcome(None)[64:]
    forged = transcript.seal(FrameType.WELCOME, body, OTHER_GATEWAY.sign)
    with pytest.raises(SignatureInvalid):
        greeted.agent.receive_answer(FrameType.WELCOME, forged, WALL_S)


def test_a_welcome_does_not_pass_for_a_reject() -> None:
    greeted = greet(enrolled_agent())
    with pytest.raises(SignatureInvalid):
        greeted.agent.receive_answer(FrameType.REJECT, greeted.answer_with_welcome(None), WALL_S)


@pytest.mark.parametrize(
    "der",
    [
        certificate_of("gpu-8").der,
        certificate_of(key=key_of("other")).der,
        certificate_of(gateway=OTHER_GATEWAY).der,
        b"rubbish",
    ],
)
def test_the_agent_refuses_a_certificate_that_is_not_its_own(der: bytes) -> None:
    greeted = greet(joining_agent())
    with pytest.raises(CertificateInvalid):
        greeted.agent.receive_answer(FrameType.WELCOME, greeted.answer_with_welcome(der), WALL_S)


@pytest.mark.parametrize(
    ("wrong_s", "doubt"),
    [(-3600, ""), (3600, ""), (-3 * 86_400, "check the clocks"), (400 * 86_400, "check the clocks")],
)
def test_an_agent_whose_clock_is_wrong_can_still_join(wrong_s: float, doubt: str) -> None:
    greeted = greet(joining_agent())
    payload = greeted.answer_with_welcome(certificate_of().der)
    welcome = greeted.agent.receive_answer(FrameType.WELCOME, payload, WALL_S + wrong_s)
    assert welcome.certificate
    assert doubt in welcome.doubt
    assert bool(doubt) == bool(welcome.doubt)


def test_joining_without_getting_a_certificate_is_an_error() -> None:
    greeted = greet(joining_agent())
    with pytest.raises(CertificateInvalid, match="sent no certificate"):
        greeted.agent.receive_answer(FrameType.WELCOME, greeted.answer_with_welcome(None), WALL_S)
