"""Versions, form and turn: everything a peer can say wrongly, and our own side's misuse."""

from collections.abc import Callable
from typing import Any

import orjson
import pytest

from shared.handshake import AgentHandshake, GatewayHandshake
from shared.handshake.agent import NEXT_STATES as AGENT_STATES
from shared.handshake.gateway import NEXT_STATES as GATEWAY_STATES
from shared.handshake.messages import MAX_PAYLOAD_BYTES
from shared.handshake.transcript import Transcript
from shared.protocol.errors import (
    CertificateInvalid,
    ErrorCode,
    HandshakeError,
    HandshakeMalformed,
    HandshakeRejected,
)
from shared.protocol.frames import RULES, FrameType
from tests.support.identities import (
    AGENT_KEY,
    AGENT_NONCE,
    GATEWAY,
    NAME,
    OTHER_GATEWAY,
    TOKEN,
    WALL_S,
    certificate_of,
    enrolled_agent,
    gateway_side,
    greet,
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


# --- Versions ---


def test_the_agent_names_both_versions_when_they_have_none_in_common() -> None:
    transcript = Transcript()
    body = orjson.dumps(orjson.loads(gateway_side().challenge()[64:]) | {"versions": [2, 3]})
    payload = transcript.seal(FrameType.CHALLENGE, body, GATEWAY.sign)
    with pytest.raises(HandshakeRejected, match="speaks protocol version 2, 3, this agent 1") as caught:
        enrolled_agent().receive_challenge(payload)
    assert caught.value.code is ErrorCode.VERSION
    assert caught.value.retry_after_s, "the CHALLENGE may be a replay, and is no reason to stop for good"


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


def test_members_that_a_later_version_adds_are_ignored() -> None:
    gateway = gateway_side()
    say_hello(gateway, orjson.dumps(hello_body(colour="blue")))
    assert gateway.hello is not None


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
    tables: list[dict[Any, frozenset[Any]]] = [GATEWAY_STATES, AGENT_STATES]
    for table in tables:
        entered = frozenset[Any]().union(*table.values())
        assert {state.name for state in table.keys() - entered} == {"START"}
        assert {state.name for state in entered - table.keys()} <= {
            "WELCOMED",
            "REJECTED",
            "ANSWERED",
            "FAILED",
        }


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
