"""Who the agent is: made once, kept privately, never mixed up."""

import base64
import errno
import stat
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.handshake import Renewal, Welcome
from shared.identity import (
    GatewayIdentity,
    JoinToken,
    KeySuccession,
    is_name,
    issue_certificate,
    public_bytes,
)
from shared.link.membership import Membership, MembershipError, default_name
from shared.link.state_directory import MemberRecord
from shared.protocol.errors import (
    CertificateInvalid,
    ErrorCode,
    GatewayUntrusted,
    HandshakeError,
    HandshakeRejected,
)
from shared.protocol.frames import FrameType
from tests.support.clock import ManualClock
from tests.support.identities import (
    GATEWAY,
    NEXT_GATEWAY,
    OTHER_GATEWAY,
    TOKEN,
    UNTIL_S,
    WALL_S,
    gateway_side,
    key_of,
)

JOIN = TOKEN.encode()
OTHER_JOIN = JoinToken.new(OTHER_GATEWAY.fingerprint).encode()
OUT_OF_DATE = HandshakeRejected(ErrorCode.UNAUTHENTICATED, "the certificate expired", 60.0)
UNKNOWN = HandshakeRejected(ErrorCode.UNAUTHENTICATED, "no record of this certificate")


def opened(directory: Path, join: str | None = None, name: str | None = None) -> Membership:
    return Membership.open(directory, join=join, name=name, default_name="host-1")


def shake(membership: Membership) -> Welcome:
    """A whole handshake with a gateway that lets everybody in."""
    handshake, gateway = membership.handshake("trunkline test"), gateway_side()
    hello = gateway.receive_hello(handshake.receive_challenge(gateway.challenge()), WALL_S)
    certificate = None
    if hello.join is not None:
        assert gateway.verify_join(TOKEN.verifier())
        certificate = issue_certificate(GATEWAY, hello.name, hello.public_key, 7, WALL_S).der
    answer = gateway.welcome("s", 1, certificate, None, 10.0)
    return handshake.receive_answer(FrameType.WELCOME, answer, WALL_S)


def joined(directory: Path) -> Membership:
    membership = opened(directory, JOIN)
    assert membership.welcomed(shake(membership))
    return membership


def test_an_agent_joins_once_and_is_known_afterwards(tmp_path: Path) -> None:
    first = joined(tmp_path / "a")
    assert (first.name, first.joined) == ("host-1", True)
    again = opened(tmp_path / "a")
    assert again.joined
    assert not again.welcomed(shake(again))
    assert again.gateway == GATEWAY.id


def test_what_is_kept_is_for_the_owner_alone(tmp_path: Path) -> None:
    directory = tmp_path / "deep" / "state"
    joined(directory)
    assert stat.S_IMODE(directory.stat().st_mode) == 0o700
    for path in directory.iterdir():
        assert stat.S_IMODE(path.stat().st_mode) == 0o600, path
    assert {path.name for path in directory.iterdir()} == {"agent.key", "membership.json"}
    assert not any(TOKEN.secret.hex() in path.read_text() for path in directory.iterdir())


def test_without_a_token_nobody_can_join(tmp_path: Path) -> None:
    with pytest.raises(MembershipError, match="trunkline token create"):
        opened(tmp_path)


def test_a_renewed_certificate_that_cannot_be_kept_is_used_and_kept_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    member = joined(tmp_path)
    renewed = shake(opened(tmp_path / "other", JOIN))

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    before = (tmp_path / "membership.json").read_bytes()
    with monkeypatch.context() as patch:
        patch.setattr("os.fsync", full)
        with pytest.raises(MembershipError, match="No space left on device"):
            member.welcomed(renewed)
    assert (tmp_path / "membership.json").read_bytes() == before
    assert {path.name for path in tmp_path.iterdir()} == {"agent.key", "membership.json", "other"}
    assert not member.welcomed(replace(renewed, certificate=None))
    assert renewed.certificate is not None
    kept = (tmp_path / "membership.json").read_text()
    assert base64.b64encode(renewed.certificate.der).decode() in kept


def test_a_token_given_again_is_not_used(tmp_path: Path) -> None:
    joined(tmp_path)
    again = opened(tmp_path, JOIN)
    assert again.has_spare_token
    assert not again.welcomed(shake(again))


def test_a_token_for_another_gateway_is_refused_with_the_ways_out(tmp_path: Path) -> None:
    joined(tmp_path)
    with pytest.raises(MembershipError, match=r"belongs to gateway .* --state of its own"):
        opened(tmp_path, OTHER_JOIN)


def test_a_member_keeps_its_name(tmp_path: Path) -> None:
    joined(tmp_path)
    assert Membership.open(tmp_path, join=None, name=None, default_name="renamed").name == "host-1"
    assert opened(tmp_path, name="host-1").name == "host-1"
    with pytest.raises(MembershipError, match="cannot become 'other'"):
        opened(tmp_path, name="other")


def test_a_certificate_that_is_refused_is_replaced_with_the_token_once(tmp_path: Path) -> None:
    joined(tmp_path)
    again = opened(tmp_path, JOIN)
    assert again.try_otherwise(UNKNOWN)
    assert again.welcomed(shake(again))
    assert not opened(tmp_path).try_otherwise(UNKNOWN)
    fresh = opened(tmp_path, JOIN)
    assert fresh.try_otherwise(UNKNOWN)
    assert not fresh.try_otherwise(UNKNOWN)


def test_a_certificate_that_may_do_later_is_tried_again_when_the_token_is_no_good(tmp_path: Path) -> None:
    joined(tmp_path)
    again = opened(tmp_path, JOIN)
    assert again.try_otherwise(OUT_OF_DATE)
    assert again.joining
    assert again.try_otherwise(UNKNOWN)
    assert not again.joining
    assert not again.try_otherwise(OUT_OF_DATE)


def test_a_token_never_undoes_a_revocation(tmp_path: Path) -> None:
    joined(tmp_path)
    again = opened(tmp_path, JOIN)
    assert not again.try_otherwise(HandshakeRejected(ErrorCode.REVOKED, "revoked"))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{}",
        "[]",
        '{"name":"x","gateway":"zz","certificate":""}',
        '{"name":"x","gateway":"00","certificate":""}',
    ],
)
def test_a_damaged_record_says_what_to_do(tmp_path: Path, text: str) -> None:
    (tmp_path / "membership.json").write_text(text)
    with pytest.raises(MembershipError, match=r"damaged: remove it and join again"):
        opened(tmp_path, JOIN)


def test_a_directory_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(MembershipError, match="file"):
        opened(tmp_path / "file", JOIN)


# --- what a gateway gives anew inside a session (PROTOCOL §8.6, §8.12) ---

DAY_S = 86_400.0


def member(
    directory: Path, clock: ManualClock, join: str | None = None, name: str | None = None
) -> Membership:
    """One that is connected, at wall-clock time ``clock``."""
    membership = Membership.open(directory, join=join, name=name, default_name="host-1", wall=clock)
    membership.welcomed(shake(membership))
    return membership


def renewal(
    membership: Membership,
    gateway: GatewayIdentity = GATEWAY,
    *,
    name: str = "host-1",
    wall_s: float = WALL_S + 60 * DAY_S,
    succession: KeySuccession | None = None,
    public_key: bytes | None = None,
) -> Renewal:
    key = public_key or membership.handshake("x")._public_key
    return Renewal(1, issue_certificate(gateway, name, key, 8, wall_s).der, succession)


def shown(membership: Membership) -> bytes | None:
    """The certificate that the next HELLO shows."""
    return membership.handshake("x")._certificate


SUCCESSION = KeySuccession.sign(GATEWAY, NEXT_GATEWAY.public_key, UNTIL_S)


def test_a_certificate_from_inside_a_session_is_kept_and_shown_from_then_on(tmp_path: Path) -> None:
    agent = member(tmp_path, ManualClock(WALL_S), JOIN)
    fresh = renewal(agent)
    agent.renew(fresh)
    assert shown(agent) == shown(opened(tmp_path)) == fresh.certificate


def test_a_new_name_is_kept_and_the_former_may_still_be_asked_for(tmp_path: Path) -> None:
    agent = member(tmp_path, ManualClock(WALL_S), JOIN)
    agent.renew(renewal(agent, name="host-2"))
    assert agent.name == "host-2"
    assert opened(tmp_path, name="host-1").name == opened(tmp_path, name="host-2").name == "host-2"
    with pytest.raises(MembershipError, match="joined as 'host-2' and cannot become 'host-3'"):
        opened(tmp_path, name="host-3")


def test_the_next_key_is_trusted_beside_the_one_before_until_the_overlap_ends(tmp_path: Path) -> None:
    clock = ManualClock(WALL_S)
    agent = member(tmp_path, clock, JOIN)
    agent.renew(renewal(agent, NEXT_GATEWAY, succession=SUCCESSION))
    agent.renew(renewal(agent, NEXT_GATEWAY, succession=SUCCESSION))  # told twice is told once
    again = Membership.open(tmp_path, join=None, name=None, default_name="x", wall=clock)
    assert agent.gateway == again.gateway == NEXT_GATEWAY.id
    clock.advance(UNTIL_S - WALL_S - 1.0)
    for each in (agent, again):
        assert each.handshake("x").gateways == (NEXT_GATEWAY.id, GATEWAY.id)
    clock.advance(1.0)
    for each in (agent, again):
        assert each.handshake("x").gateways == (NEXT_GATEWAY.id,)


def test_a_token_of_the_key_before_that_lies_about_is_no_other_gateways(tmp_path: Path) -> None:
    agent = member(tmp_path, ManualClock(WALL_S), JOIN)
    agent.renew(renewal(agent, NEXT_GATEWAY, succession=SUCCESSION))
    next_join = JoinToken.new(NEXT_GATEWAY.fingerprint).encode()
    assert opened(tmp_path, JOIN).has_spare_token
    assert opened(tmp_path, next_join).has_spare_token
    with pytest.raises(MembershipError, match="belongs to gateway"):
        opened(tmp_path, OTHER_JOIN)


def forged(agent: Membership) -> list[tuple[str, Renewal]]:
    """What no agent takes, and what it says to that."""
    stranger = KeySuccession.sign(OTHER_GATEWAY, NEXT_GATEWAY.public_key, UNTIL_S)
    changed = replace(SUCCESSION, until_s=SUCCESSION.until_s + 1)
    return [
        ("not issued by this gateway", renewal(agent, OTHER_GATEWAY)),
        ("not issued by this gateway", renewal(agent, NEXT_GATEWAY)),  # which nobody announced
        ("belongs to another key", renewal(agent, public_key=public_bytes(key_of("stranger")))),
        ("older than the one held", renewal(agent, wall_s=WALL_S - 1)),
        ("is not this agent's gateway", renewal(agent, NEXT_GATEWAY, succession=stranger)),
        ("not the old key's", renewal(agent, NEXT_GATEWAY, succession=changed)),
        ("is no X.509", replace(renewal(agent), certificate=b"x")),
    ]


def test_nothing_is_taken_of_what_does_not_verify(tmp_path: Path) -> None:
    agent = member(tmp_path, ManualClock(WALL_S), JOIN)
    before = (tmp_path / "membership.json").read_bytes()
    for wrong, each in forged(agent):
        with pytest.raises(HandshakeError, match=wrong):
            agent.renew(each)
        assert (tmp_path / "membership.json").read_bytes() == before, wrong
        assert (agent.name, agent.gateway) == ("host-1", GATEWAY.id), wrong


def test_a_former_key_announces_no_other_successor(tmp_path: Path) -> None:
    agent = member(tmp_path, ManualClock(WALL_S), JOIN)
    agent.renew(renewal(agent, NEXT_GATEWAY, succession=SUCCESSION))
    again = KeySuccession.sign(GATEWAY, OTHER_GATEWAY.public_key, UNTIL_S)
    with pytest.raises(GatewayUntrusted):
        agent.renew(renewal(agent, OTHER_GATEWAY, succession=again))
    assert agent.gateway == NEXT_GATEWAY.id


def test_a_certificate_of_the_future_gives_way_to_one_that_is_not(tmp_path: Path) -> None:
    clock = ManualClock(WALL_S)
    agent = member(tmp_path, clock, JOIN)
    agent.renew(renewal(agent, wall_s=WALL_S + 400 * DAY_S))  # the gateway's clock was ahead
    right = renewal(agent, wall_s=WALL_S + 1)
    agent.renew(right)
    assert shown(agent) == right.certificate


def test_what_a_full_disk_does_not_take_is_used_and_kept_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent = member(tmp_path, ManualClock(WALL_S), JOIN)
    fresh = renewal(agent)

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("os.fsync", full)
        agent.renew(fresh)
    assert shown(agent) == fresh.certificate != shown(opened(tmp_path))
    agent.welcomed(replace(shake(agent), certificate=None))
    assert shown(opened(tmp_path)) == fresh.certificate


def test_who_has_not_joined_has_nothing_to_renew(tmp_path: Path) -> None:
    agent = opened(tmp_path, JOIN)
    with pytest.raises(CertificateInvalid):
        agent.renew(renewal(agent))


@pytest.fixture(scope="module")
def standing(tmp_path_factory: pytest.TempPathFactory) -> tuple[Membership, Path]:
    """A member for all examples, and where it keeps its record."""
    directory = tmp_path_factory.mktemp("agent")
    return member(directory, ManualClock(WALL_S), JOIN), directory / "membership.json"


JUNK: st.SearchStrategy[Any] = st.sampled_from([None, 0, -1, 2**60, "", "AAAA", "x" * 9000, [], {}, True])


@given(data=st.data())
def test_whatever_a_renewal_says_the_agent_takes_it_or_says_why_not(
    standing: tuple[Membership, Path], data: st.DataObject
) -> None:
    agent, path = standing
    command = renewal(agent, NEXT_GATEWAY, succession=SUCCESSION).to_dict()
    for part in (command, command["succession"]):
        for name in data.draw(st.sets(st.sampled_from(sorted(part)), max_size=2)):
            part[name] = data.draw(JUNK)
    before = MemberRecord.read(path)
    try:
        agent.renew(Renewal.read(command))
    except HandshakeError:
        assert MemberRecord.read(path) == before
    else:
        assert agent.gateway == NEXT_GATEWAY.id


def test_the_default_name_is_the_hosts(monkeypatch: pytest.MonkeyPatch) -> None:
    for host, name in {
        "GPU_7.example": "gpu_7.example",
        "-é-": "agent",
        "héllo!": "h-llo",
        "": "agent",
    }.items():
        monkeypatch.setattr("socket.gethostname", lambda host=host: host)
        assert default_name() == name
        assert is_name(default_name())
