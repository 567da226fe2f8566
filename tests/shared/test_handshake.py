"""The handshake in order, and everything a peer can say out of order or out of turn."""

from collections.abc import Callable
from typing import Any

import orjson
import pytest

from shared.errors import (
    CertificateInvalid,
    ErrorCode,
    GatewayUntrusted,
    HandshakeError,
    HandshakeMalformed,
    HandshakeRejected,
    SignatureInvalid,
)
from shared.frames import RULES, FrameType
from shared.handshake import MAX_PAYLOAD_BYTES, AgentHandshake, GatewayHandshake
from shared.handshake.agent import TRANSITIONS as AGENT_TRANSITIONS
from shared.handshake.gateway import TRANSITIONS as GATEWAY_TRANSITIONS
from shared.handshake.transcript import Transcript
from shared.identity import JoinToken, public_bytes
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


def hello_body(**changes: Any) -> dict[str, Any]:
    """The JSON of a good HELLO with a certificate, then changed."""
    greeted = greet(enrolled_agent())
    body: dict[str, Any] = orjson.loads(greeted.hello_payload[64:])
    return body | changes


def say_hello(gateway: GatewayHandshake, body: bytes) -> None:
    """Sign and deliver a HELLO whose JSON half is ``body``."""
    transcript = Transcript()
    transcript.append(FrameType.CHALLENGE, gateway.challenge())
    gateway.receive_hello(transcript.seal(FrameType.HELLO, body, AGENT_KEY.sign), WALL_S)


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


def test_members_that_a_later_version_adds_are_ignored() -> None:
    gateway = gateway_side()
    say_hello(gateway, orjson.dumps(hello_body(colour="blue")))
    assert gateway.hello is not None


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
    forged = transcript.seal(FrameType.HELLO, orjson.dumps(hello_body()), key_of("thief").sign)
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
        certificate_of(wall_s=WALL_S - 92 * 86_400).der,
        b"rubbish",
    ],
)
def test_the_agent_refuses_a_certificate_that_is_not_its_own(der: bytes) -> None:
    greeted = greet(joining_agent())
    with pytest.raises(CertificateInvalid):
        greeted.agent.receive_answer(FrameType.WELCOME, greeted.answer_with_welcome(der), WALL_S)


def test_an_agent_whose_clock_is_an_hour_off_can_still_join() -> None:
    greeted = greet(joining_agent())
    payload = greeted.answer_with_welcome(certificate_of().der)
    assert greeted.agent.receive_answer(FrameType.WELCOME, payload, WALL_S - 3600).certificate


def test_joining_without_getting_a_certificate_is_an_error() -> None:
    greeted = greet(joining_agent())
    with pytest.raises(CertificateInvalid, match="sent no certificate"):
        greeted.agent.receive_answer(FrameType.WELCOME, greeted.answer_with_welcome(None), WALL_S)


# --- Versions ---


def test_the_agent_names_both_versions_when_they_have_none_in_common() -> None:
    transcript = Transcript()
    body = orjson.dumps(orjson.loads(gateway_side().challenge()[64:]) | {"versions": [2, 3]})
    payload = transcript.seal(FrameType.CHALLENGE, body, GATEWAY.sign)
    with pytest.raises(HandshakeRejected, match="speaks protocol version 2, 3, this agent 1") as caught:
        enrolled_agent().receive_challenge(payload)
    assert caught.value.code is ErrorCode.VERSION


def test_the_agent_takes_the_highest_version_in_common() -> None:
    transcript = Transcript()
    body = orjson.dumps(orjson.loads(gateway_side().challenge()[64:]) | {"versions": [3, 1, 2]})
    hello = enrolled_agent().receive_challenge(transcript.seal(FrameType.CHALLENGE, body, GATEWAY.sign))
    assert orjson.loads(hello[64:])["version"] == 1


def test_the_gateway_refuses_a_version_it_did_not_offer() -> None:
    with pytest.raises(HandshakeRejected, match="not 2") as caught:
        say_hello(gateway_side(), orjson.dumps(hello_body(version=2)))
    assert caught.value.code is ErrorCode.VERSION


# --- Form ---

BAD_HELLOS: list[dict[str, Any]] = [
    {"version": "1"},
    {"version": True},
    {"version": 0},
    {"name": "GPU 7"},
    {"name": ""},
    {"name": 7},
    {"key": "AAAA"},
    {"key": None},
    {"nonce": "AA" * 22},
    {"nonce": "not base64 at all!"},
    {"software": ""},
    {"software": "a\nb"},
    {"software": "x" * 129},
    {"session": "s"},
    {"session": {"id": "s", "received": -1}},
    {"session": {"id": "s"}},
    {"limits": []},
    {"limits": {"a": -1}},
    {"limits": {"a": 1.5}},
    {"limits": {"a": 2**60}},
    {"limits": {str(n): n for n in range(33)}},
    {"limits": {"n" * 65: 1}},
    {"certificate": None},
    {"certificate": "A" * 6000},
    {"join": {"id": "0011223344556677", "proof": "A" * 86 + "=="}},
    {"certificate": None, "join": {"id": "short", "proof": "A" * 86 + "=="}},
    {"certificate": None, "join": {"id": "0011223344556677", "proof": "AAAA"}},
    {"certificate": None, "join": []},
]


@pytest.mark.parametrize("changes", BAD_HELLOS, ids=str)
def test_a_signed_hello_with_a_bad_member_is_malformed(changes: dict[str, Any]) -> None:
    with pytest.raises(HandshakeMalformed):
        say_hello(gateway_side(), orjson.dumps(hello_body(**changes)))


@pytest.mark.parametrize("body", [b"[]", b"null", b"{", b"\xff\xfe", b"[" * 5000, b'{"version":1}'])
def test_a_signed_hello_that_is_no_such_object_is_malformed(body: bytes) -> None:
    with pytest.raises(HandshakeMalformed):
        say_hello(gateway_side(), body)


@pytest.mark.parametrize("size_bytes", [0, 1, 63, 64, MAX_PAYLOAD_BYTES + 1])
def test_a_payload_too_short_or_too_long_is_malformed_everywhere(size_bytes: int) -> None:
    payload = bytes(size_bytes)
    gateway = gateway_side()
    gateway.challenge()
    with pytest.raises(HandshakeMalformed):
        gateway.receive_hello(payload, WALL_S)
    with pytest.raises(HandshakeMalformed):
        enrolled_agent().receive_challenge(payload)
    with pytest.raises(HandshakeMalformed):
        greet(enrolled_agent()).agent.receive_answer(FrameType.WELCOME, payload, WALL_S)


def test_the_longest_hello_fits_its_frame() -> None:
    most = {f"{n:064}": 2**53 - 1 for n in range(32)}
    agent = AgentHandshake(
        AGENT_KEY, "a" * 63, AGENT_NONCE, bytes(4096), None, GATEWAY.fingerprint, "s" * 128, most
    )
    assert len(agent.receive_challenge(gateway_side().challenge())) <= MAX_PAYLOAD_BYTES


def test_the_longest_payload_is_what_a_frame_may_carry() -> None:
    for frame in (FrameType.CHALLENGE, FrameType.HELLO, FrameType.WELCOME, FrameType.REJECT):
        assert RULES[frame].most_bytes == MAX_PAYLOAD_BYTES


# --- Turn ---


def test_a_second_hello_is_out_of_turn() -> None:
    greeted = greet(enrolled_agent())
    with pytest.raises(HandshakeMalformed, match="out of turn"):
        greeted.gateway.receive_hello(greeted.hello_payload, WALL_S)


def test_a_hello_before_the_challenge_is_out_of_turn() -> None:
    with pytest.raises(HandshakeMalformed, match="out of turn"):
        gateway_side().receive_hello(greet(enrolled_agent()).hello_payload, WALL_S)


def test_a_second_challenge_or_answer_is_out_of_turn() -> None:
    greeted = greet(enrolled_agent())
    with pytest.raises(HandshakeMalformed, match="out of turn"):
        greeted.agent.receive_challenge(greeted.challenge)
    payload = greeted.answer_with_welcome(None)
    greeted.agent.receive_answer(FrameType.WELCOME, payload, WALL_S)
    with pytest.raises(HandshakeMalformed, match="out of turn"):
        greeted.agent.receive_answer(FrameType.WELCOME, payload, WALL_S)


@pytest.mark.parametrize("frame_type", [FrameType.CHALLENGE, FrameType.HELLO, FrameType.DATA, 0, 255])
def test_only_welcome_and_reject_answer_a_hello(frame_type: int) -> None:
    greeted = greet(enrolled_agent())
    with pytest.raises(HandshakeMalformed, match="out of turn"):
        greeted.agent.receive_answer(frame_type, greeted.answer_with_welcome(None), WALL_S)


def test_an_answer_before_the_challenge_is_out_of_turn() -> None:
    with pytest.raises(HandshakeMalformed, match="out of turn"):
        enrolled_agent().receive_answer(FrameType.WELCOME, bytes(100), WALL_S)


def test_after_a_failure_the_agent_takes_nothing_more() -> None:
    agent = enrolled_agent()
    with pytest.raises(HandshakeError):
        agent.receive_challenge(gateway_side(OTHER_GATEWAY).challenge())
    with pytest.raises(HandshakeMalformed, match="out of turn"):
        agent.receive_challenge(gateway_side().challenge())


def test_a_bad_hello_can_be_rejected_so_that_its_sender_can_verify_why() -> None:
    gateway = gateway_side()
    agent = enrolled_agent()
    hello = agent.receive_challenge(gateway.challenge())
    with pytest.raises(CertificateInvalid) as caught:
        gateway.receive_hello(hello, WALL_S + 91 * 86_400)
    assert gateway.hello is None
    assert gateway.can_reject
    payload = gateway.reject(caught.value.code, str(caught.value))
    with pytest.raises(HandshakeRejected, match="expired"):
        agent.receive_answer(FrameType.REJECT, payload, WALL_S)


def test_there_is_nothing_to_reject_before_a_hello_and_after_an_answer() -> None:
    gateway = gateway_side()
    gateway.challenge()
    assert not gateway.can_reject
    greeted = greet(enrolled_agent())
    assert greeted.gateway.can_reject
    greeted.answer_with_welcome(None)
    assert not greeted.gateway.can_reject


@pytest.mark.parametrize(
    "misuse",
    [
        lambda: gateway_side().welcome("s", 1, None, None, 10.0),
        lambda: gateway_side().reject(ErrorCode.REVOKED, "no"),
        lambda: greet(enrolled_agent()).gateway.challenge(),
    ],
)
def test_our_own_side_out_of_turn_is_an_assertion(misuse: Callable[[], object]) -> None:
    with pytest.raises(AssertionError):
        misuse()


def test_every_state_can_be_reached_and_ends() -> None:
    for table in (GATEWAY_TRANSITIONS, AGENT_TRANSITIONS):
        entered = set(table.values())
        left = {state for state, _ in table}
        assert {state.name for state in left - entered} == {"START"}
        assert {state.name for state in entered - left} <= {"DONE", "FAILED"}


# --- Arguments ---


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"name": "GPU 7"}, "cannot name an agent"),
        ({"certificate": None}, "exactly one"),
        ({"join_token": TOKEN}, "exactly one"),
        ({"certificate": b""}, "0 bytes"),
        ({"pinned_fingerprint": None}, "fingerprint must be given"),
        ({"pinned_fingerprint": b"short"}, "has 32 bytes"),
        ({"certificate": None, "join_token": TOKEN, "pinned_fingerprint": bytes(32)}, "another gateway"),
    ],
)
def test_arguments_that_cannot_make_a_hello_are_refused(changes: dict[str, Any], complaint: str) -> None:
    good: dict[str, Any] = {"name": NAME, "certificate": certificate_of().der, "join_token": None}
    good["pinned_fingerprint"] = GATEWAY.fingerprint
    with pytest.raises(ValueError, match=complaint):
        AgentHandshake(AGENT_KEY, nonce=AGENT_NONCE, **(good | changes))
