"""One key of a gateway follows another, and for a while both count (PROTOCOL §8.12)."""

from dataclasses import replace
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.handshake import AgentHandshake, GatewayHandshake, Renewal
from shared.identity import GatewayIdentity, GatewayKeys, KeySuccession, public_bytes, read_certificate
from shared.protocol.errors import (
    CertificateInvalid,
    GatewayUntrusted,
    HandshakeMalformed,
    SignatureInvalid,
)
from shared.protocol.frames import FrameType
from tests.support.identities import (
    AGENT_KEY,
    AGENT_LIMITS,
    AGENT_NONCE,
    GATEWAY,
    GATEWAY_LIMITS,
    GATEWAY_NONCE,
    NAME,
    NEXT_GATEWAY,
    OTHER_GATEWAY,
    TOKEN,
    UNTIL_S,
    WALL_S,
    certificate_of,
    key_of,
)

KEYS = GatewayKeys(NEXT_GATEWAY, GATEWAY, float(UNTIL_S))
SUCCESSION = KeySuccession.sign(GATEWAY, NEXT_GATEWAY.public_key, UNTIL_S)
IDENTITIES = (GATEWAY, NEXT_GATEWAY, OTHER_GATEWAY)
RENEWAL = Renewal(7, certificate_of(gateway=NEXT_GATEWAY).der, SUCCESSION)


def meet(
    keys: GatewayKeys, pins: list[GatewayIdentity], issuer: GatewayIdentity, wall_s: float
) -> AgentHandshake:
    """CHALLENGE and HELLO between a gateway with ``keys`` and an agent with ``pins`` whose certificate
    ``issuer`` made. Raises HandshakeError."""
    first, *others = (pin.fingerprint for pin in pins)
    certificate = certificate_of(gateway=issuer, wall_s=wall_s).der
    agent = AgentHandshake(
        AGENT_KEY, NAME, AGENT_NONCE, certificate, pinned_fingerprint=first, also_pinned=others
    )
    gateway = GatewayHandshake(
        keys.choose(agent.gateways, wall_s), GATEWAY_NONCE, GATEWAY_LIMITS, keys.trusted(wall_s)
    )
    gateway.receive_hello(agent.receive_challenge(gateway.challenge()), wall_s)
    payload = gateway.welcome("s", 1, None, None, 10.0)
    welcome = agent.receive_answer(FrameType.WELCOME, payload, wall_s)
    assert welcome.gateway_key == gateway.identity.public_key
    return agent


@pytest.mark.parametrize("pins", [[GATEWAY], [NEXT_GATEWAY], [NEXT_GATEWAY, GATEWAY]])
@pytest.mark.parametrize("issuer", [GATEWAY, NEXT_GATEWAY], ids=["old-issued", "new-issued"])
def test_in_the_overlap_either_key_is_trusted_on_both_sides(
    pins: list[GatewayIdentity], issuer: GatewayIdentity
) -> None:
    assert meet(KEYS, pins, issuer, UNTIL_S - 1.0)


def test_after_the_overlap_the_key_before_counts_for_nothing() -> None:
    with pytest.raises(GatewayUntrusted, match=r"key was changed while this agent was away.*--join"):
        meet(KEYS, [GATEWAY], GATEWAY, float(UNTIL_S))
    with pytest.raises(CertificateInvalid, match="not issued by this gateway"):
        meet(KEYS, [NEXT_GATEWAY], GATEWAY, float(UNTIL_S))
    assert meet(KEYS, [NEXT_GATEWAY, GATEWAY], NEXT_GATEWAY, float(UNTIL_S))


@given(
    pins=st.lists(st.sampled_from(IDENTITIES), min_size=1, max_size=3, unique=True),
    issuer=st.sampled_from(IDENTITIES),
    before=st.sampled_from((None, GATEWAY)),
    left_s=st.sampled_from((-1.0, 0.0, 1.0)),
)
def test_two_meet_if_and_only_if_each_trusts_what_the_other_shows(
    pins: list[GatewayIdentity], issuer: GatewayIdentity, before: GatewayIdentity | None, left_s: float
) -> None:
    keys = GatewayKeys(NEXT_GATEWAY, before, float(UNTIL_S))
    counting = {NEXT_GATEWAY} if before is None or left_s <= 0 else {NEXT_GATEWAY, before}
    welcome = bool(counting & set(pins)) and issuer in counting
    if welcome:
        meet(keys, pins, issuer, UNTIL_S - left_s)
    else:
        with pytest.raises((GatewayUntrusted, CertificateInvalid)):
            meet(keys, pins, issuer, UNTIL_S - left_s)


@pytest.mark.parametrize(
    ("known", "left_s", "chosen"),
    [
        ([], 1.0, GATEWAY),
        ([GATEWAY.id], 1.0, GATEWAY),
        ([NEXT_GATEWAY.id], 1.0, NEXT_GATEWAY),
        ([GATEWAY.id, NEXT_GATEWAY.id], 1.0, NEXT_GATEWAY),
        ([OTHER_GATEWAY.id], 1.0, NEXT_GATEWAY),
        ([], 0.0, NEXT_GATEWAY),
        ([GATEWAY.id], 0.0, NEXT_GATEWAY),
    ],
)
def test_the_key_is_the_newest_that_the_agent_trusts(
    known: list[str], left_s: float, chosen: GatewayIdentity
) -> None:
    assert KEYS.choose(known, UNTIL_S - left_s) is chosen


def test_a_gateway_that_never_changed_its_key_has_one() -> None:
    keys = GatewayKeys(GATEWAY)
    assert keys.choose([OTHER_GATEWAY.id], WALL_S) is GATEWAY
    assert keys.trusted(WALL_S) == (GATEWAY.public_key,)
    assert keys.succession(WALL_S) is None


def test_an_announcement_is_made_while_the_key_before_counts() -> None:
    assert KEYS.succession(UNTIL_S - 1.0) == SUCCESSION
    assert KEYS.succession(float(UNTIL_S)) is None


@pytest.mark.parametrize(
    "change",
    [
        {"new_key": OTHER_GATEWAY.public_key},
        {"old_key": OTHER_GATEWAY.public_key},
        {"old_key": b"\xff" * 32},
        {"until_s": UNTIL_S + 1},
        {"signature": bytes(64)},
        {"signature": KeySuccession.sign(OTHER_GATEWAY, NEXT_GATEWAY.public_key, UNTIL_S).signature},
    ],
)
def test_an_announcement_that_was_changed_is_nobodys(change: dict[str, Any]) -> None:
    SUCCESSION.verify()
    with pytest.raises(SignatureInvalid):
        replace(SUCCESSION, **change).verify()


def test_a_renewal_is_read_as_it_was_written() -> None:
    assert Renewal.read(orjson.loads(orjson.dumps(RENEWAL.to_dict()))) == RENEWAL
    alone = replace(RENEWAL, succession=None)
    assert Renewal.read(orjson.loads(orjson.dumps(alone.to_dict()))) == alone


@pytest.mark.parametrize(
    "damage",
    [
        {"id": None},
        {"id": -1},
        {"certificate": None},
        {"certificate": "!"},
        {"certificate": "A" * 8000},
        {"succession": 1},
        {"succession": {}},
        {"succession": RENEWAL.to_dict()["succession"] | {"until_s": 2**53}},
        {"succession": RENEWAL.to_dict()["succession"] | {"next": "AAAA"}},
    ],
)
def test_a_renewal_that_is_none_is_malformed(damage: dict[str, Any]) -> None:
    with pytest.raises(HandshakeMalformed):
        Renewal.read(RENEWAL.to_dict() | damage)


def test_a_certificate_is_read_for_whoever_it_is_and_names_its_issuer() -> None:
    other = certificate_of("gpu-8", key_of("another agent"), NEXT_GATEWAY)
    read = read_certificate(other.der, (GATEWAY.public_key, NEXT_GATEWAY.public_key))
    assert read == other
    assert (read.name, read.issuer) == ("gpu-8", NEXT_GATEWAY.public_key)
    with pytest.raises(CertificateInvalid):
        read_certificate(other.der, (GATEWAY.public_key,))
    with pytest.raises(CertificateInvalid):
        read_certificate(other.der, ())


def test_tokens_and_their_agents_do_not_notice_a_change_of_the_key() -> None:
    agent = AgentHandshake(AGENT_KEY, NAME, AGENT_NONCE, join_token=TOKEN, limits=AGENT_LIMITS)
    identity = KEYS.choose(agent.gateways, WALL_S)
    gateway = GatewayHandshake(identity, GATEWAY_NONCE, GATEWAY_LIMITS, KEYS.trusted(WALL_S))
    hello = gateway.receive_hello(agent.receive_challenge(gateway.challenge()), WALL_S)
    assert gateway.verify_join(TOKEN.verifier())
    assert (identity, hello.public_key) == (GATEWAY, public_bytes(AGENT_KEY))
