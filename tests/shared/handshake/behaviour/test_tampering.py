"""Nothing in a handshake can be changed on its way, and no bytes cause an undocumented error."""

from collections.abc import Callable
from contextlib import suppress

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shared.handshake.transcript import Transcript
from shared.protocol.errors import ErrorCode, HandshakeError, HandshakeRejected
from shared.protocol.frames import FrameType
from tests.support.identities import (
    GATEWAY,
    WALL_S,
    certificate_of,
    enrolled_agent,
    gateway_side,
    greet,
    joining_agent,
)

Deliver = Callable[[bytes], object]


def to_agent_challenge() -> tuple[bytes, Deliver]:
    return gateway_side().challenge(), enrolled_agent().receive_challenge


def to_gateway_hello(joining: bool) -> tuple[bytes, Deliver]:
    gateway = gateway_side()
    agent = joining_agent() if joining else enrolled_agent()
    payload = agent.receive_challenge(gateway.challenge())
    return payload, lambda tampered: gateway.receive_hello(tampered, WALL_S)


def to_agent_welcome() -> tuple[bytes, Deliver]:
    greeted = greet(joining_agent())
    payload = greeted.answer_with_welcome(certificate_of().der)
    return payload, lambda tampered: greeted.agent.receive_answer(FrameType.WELCOME, tampered, WALL_S)


def to_agent_reject() -> tuple[bytes, Deliver]:
    greeted = greet(enrolled_agent())
    payload = greeted.gateway.reject(ErrorCode.REVOKED, "revoked", 3.0)
    return payload, lambda tampered: greeted.agent.receive_answer(FrameType.REJECT, tampered, WALL_S)


DELIVERIES: dict[str, Callable[[], tuple[bytes, Deliver]]] = {
    "CHALLENGE": to_agent_challenge,
    "HELLO with a token": lambda: to_gateway_hello(joining=True),
    "HELLO with a certificate": lambda: to_gateway_hello(joining=False),
    "WELCOME": to_agent_welcome,
    "REJECT": to_agent_reject,
}

deliveries = pytest.mark.parametrize("make", DELIVERIES.values(), ids=DELIVERIES.keys())


def refused(deliver: Deliver, payload: bytes) -> None:
    """Delivers bytes that the sender did not send; they must be refused, and not as a REJECT believed."""
    with pytest.raises(HandshakeError) as caught:
        deliver(payload)
    error = caught.value
    assert str(error)
    assert not isinstance(error, HandshakeRejected) or error.code is ErrorCode.VERSION


@deliveries
def test_any_byte_changed_is_refused(make: Callable[[], tuple[bytes, Deliver]]) -> None:
    length = len(make()[0])
    for index in range(length):
        payload, deliver = make()
        tampered = bytearray(payload)
        tampered[index] ^= 1 << index % 8
        refused(deliver, bytes(tampered))


@deliveries
@given(data=st.data())
@settings(max_examples=60, deadline=None)
def test_any_cut_insertion_or_replacement_is_refused(
    make: Callable[[], tuple[bytes, Deliver]], data: st.DataObject
) -> None:
    payload, deliver = make()
    start = data.draw(st.integers(0, len(payload)))
    stop = data.draw(st.integers(start, len(payload)))
    tampered = payload[:start] + data.draw(st.binary(max_size=80)) + payload[stop:]
    if tampered != payload:
        refused(deliver, tampered)


@deliveries
@given(garbage=st.binary(max_size=400))
@settings(max_examples=60, deadline=None)
def test_garbage_is_refused(make: Callable[[], tuple[bytes, Deliver]], garbage: bytes) -> None:
    refused(make()[1], garbage)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats() | st.text(max_size=40),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=12), inner, max_size=4),
    max_leaves=12,
)


MEMBERS = [
    *("versions", "gateway", "key", "nonce"),
    *("session", "generation", "limits", "certificate", "heartbeat_s", "resume_window_s"),
    *("code", "reason", "retry_after_s"),
]


@given(
    frame=st.sampled_from([FrameType.CHALLENGE, FrameType.WELCOME, FrameType.REJECT]),
    changes=st.dictionaries(
        st.sampled_from(MEMBERS),
        json_values,
        min_size=1,
    ),
)
@settings(max_examples=100, deadline=None)
def test_whatever_a_gateway_signs_the_agent_fails_only_as_documented(
    frame: FrameType, changes: dict[str, object]
) -> None:
    """The pinned gateway itself may be broken: its signature does not make what it says well-formed."""
    transcript = Transcript()
    agent = enrolled_agent()
    challenge = gateway_side().challenge()
    if frame is FrameType.CHALLENGE:
        body = orjson.dumps(orjson.loads(challenge[64:]) | changes)
        deliver: Deliver = agent.receive_challenge
    else:
        transcript.append(FrameType.CHALLENGE, challenge)
        transcript.append(FrameType.HELLO, agent.receive_challenge(challenge))
        good = {"session": "s", "generation": 1, "limits": {}, "certificate": None, "heartbeat_s": 10}
        good |= {"resume_window_s": 0, "code": 15, "reason": "no", "retry_after_s": None}
        body = orjson.dumps(good | changes)

        def deliver(payload: bytes) -> object:
            return agent.receive_answer(frame, payload, WALL_S)

    with suppress(HandshakeError):
        deliver(transcript.seal(frame, body, GATEWAY.sign))
