"""Agents whose certificate, name, rights or gateway's key changes: what is renewed, and what is refused."""

import pytest

from gateway.auth import AdmittedAgent, AgentDirectory
from gateway.storage import Store
from gateway.storage.errors import BadValue, NameTaken, UnknownRecord
from shared.identity import CERTIFICATE_LIFE_S, issue_certificate, public_bytes
from shared.protocol.errors import (
    CertificateInvalid,
    CertificateOutOfDate,
    ErrorCode,
    GatewayUntrusted,
    HandshakeRejected,
)
from tests.gateway.auth.house import DAY_S, NOW_S, House, rejected
from tests.support.identities import OTHER_GATEWAY, key_of


@pytest.fixture
def house(store: Store) -> House:
    return House(store, AgentDirectory(store))


def renewed(house: House, admitted: AdmittedAgent) -> AdmittedAgent:
    """As it is once the agent has taken what is due."""
    assert house.directory.renewal_check(house.wall_s)(admitted)
    certificate, _ = house.directory.renew(admitted, house.wall_s)
    return AdmittedAgent(house.directory.rights(admitted), None, admitted.agent_id, certificate)


# --- certificates that wear out ---


def test_a_connected_agent_is_due_in_the_last_third_of_its_certificates_life(house: House) -> None:
    admitted, _ = house.join(house.token())
    assert not house.directory.renewal_check(NOW_S + CERTIFICATE_LIFE_S * 0.66)(admitted)
    house.wall_s += CERTIFICATE_LIFE_S * 0.67
    after = renewed(house, admitted)
    assert not house.directory.renewal_check(house.wall_s)(after)
    assert after.certificate.not_after_s == int(house.wall_s + CERTIFICATE_LIFE_S)
    assert house.come_back(after.certificate.der)
    assert house.come_back(admitted.certificate.der), "COMMAND may have been lost"


def test_a_session_of_many_lives_is_renewed_without_dialling(house: House) -> None:
    admitted, _ = house.join(house.token())
    for _ in range(12):
        house.wall_s += CERTIFICATE_LIFE_S * 0.9
        admitted = renewed(house, admitted)
    assert house.come_back(admitted.certificate.der)


def test_a_certificate_that_expired_under_a_session_is_renewed_in_it(house: House) -> None:
    admitted, _ = house.join(house.token())
    house.wall_s += CERTIFICATE_LIFE_S + DAY_S
    assert house.directory.refusal(admitted) is None
    after = renewed(house, admitted)
    assert house.come_back(after.certificate.der)
    with pytest.raises(CertificateOutOfDate):
        house.come_back(admitted.certificate.der)


def test_certificates_last_as_long_as_is_set(store: Store) -> None:
    house = House(store, AgentDirectory(store, certificate_life_s=3600.0))
    admitted, _ = house.join(house.token())
    assert admitted.certificate.not_after_s == int(NOW_S + 3600)
    house.wall_s += 3000
    assert renewed(house, admitted).certificate.not_after_s == int(NOW_S + 6600)


def test_the_certificate_in_use_stays_good_however_many_were_sent_in_vain(house: House) -> None:
    admitted, certificate = house.join(house.token())
    for _ in range(6):
        house.wall_s += 1
        house.directory.renew(admitted, house.wall_s)
    assert house.come_back(certificate)


def test_a_revoked_agent_gets_no_certificate(house: House, command: Store) -> None:
    admitted, _ = house.join(house.token())
    command.agents.revoke("gpu-7", "", NOW_S)
    with pytest.raises(UnknownRecord, match="revoked"):
        house.directory.renew(admitted, house.wall_s)


# --- certificates under a gateway's clock that is wrong ---


@pytest.mark.parametrize("behind_s", [3600.0, 20 * DAY_S, 400 * DAY_S])
def test_a_clock_that_is_behind_replaces_no_certificate(house: House, behind_s: float) -> None:
    admitted, held = house.join(house.token())
    house.wall_s -= behind_s
    assert not house.directory.renewal_check(house.wall_s)(admitted)
    for _ in range(6):
        assert house.come_back(held)[1].certificate is None
    house.wall_s += behind_s
    assert house.come_back(held)[1].certificate is None


def test_what_a_clock_that_is_behind_must_issue_lasts_as_long_as_what_it_replaces(
    house: House, command: Store
) -> None:
    admitted, _ = house.join(house.token())
    command.agents.rename("gpu-7", "berlin-7")
    command.identity.rotate(30 * DAY_S, NOW_S - 400 * DAY_S)
    house.wall_s -= 400 * DAY_S
    after = renewed(house, admitted)
    assert (after.certificate.name, after.certificate.issuer) == (
        "berlin-7",
        command.identity.keys.current.public_key,
    )
    assert after.certificate.not_after_s >= admitted.certificate.not_after_s
    assert after.certificate.not_before_s > admitted.certificate.not_before_s, "agents take nothing older"
    assert not house.directory.renewal_check(house.wall_s)(after)
    house.wall_s = NOW_S
    pinned = command.identity.keys.current.fingerprint
    assert house.come_back(after.certificate.der, "berlin-7", key_of("gpu-7"), pinned)


def test_certificates_of_a_clock_that_was_ahead_stay_until_they_have_worn(house: House) -> None:
    house.wall_s += 400 * DAY_S
    admitted, held = house.join(house.token())
    house.wall_s -= 400 * DAY_S
    assert house.come_back(held)[1].certificate is None
    house.wall_s += 400 * DAY_S + CERTIFICATE_LIFE_S * 0.7
    fresh = house.come_back(held)[1].certificate
    assert fresh is not None
    assert fresh.not_after_s > admitted.certificate.not_after_s


def test_a_shorter_life_is_taken_up_with_the_next_renewal(store: Store) -> None:
    house = House(store, AgentDirectory(store))
    admitted, held = house.join(house.token())
    house.directory = AgentDirectory(store, 7 * DAY_S)
    house.wall_s += CERTIFICATE_LIFE_S * 0.7
    fresh = house.come_back(held)[1].certificate
    assert fresh is not None
    assert fresh.not_after_s == int(house.wall_s + 7 * DAY_S) < admitted.certificate.not_after_s


def test_a_shorter_life_is_not_counted_from_a_clock_that_is_behind(house: House, command: Store) -> None:
    admitted, _ = house.join(house.token())
    house.directory = AgentDirectory(house.store, 7 * DAY_S)
    command.agents.rename("gpu-7", "berlin-7")
    house.wall_s -= 400 * DAY_S
    assert renewed(house, admitted).certificate.not_after_s >= admitted.certificate.not_after_s


# --- each refusal ---


def test_an_expired_certificate_is_refused_for_now(house: House) -> None:
    _, certificate = house.join(house.token())
    house.wall_s += CERTIFICATE_LIFE_S + 1
    with pytest.raises(CertificateOutOfDate, match="expired") as refused:
        house.come_back(certificate)
    assert refused.value.retry_after_s is not None


def test_another_gateways_certificate_is_refused(house: House) -> None:
    house.join(house.token())
    other = issue_certificate(OTHER_GATEWAY, "gpu-7", public_bytes(key_of("gpu-7")), 1, NOW_S)
    with pytest.raises(CertificateInvalid, match="not issued by this gateway"):
        house.come_back(other.der)


def test_another_name_than_the_certificates_is_refused(house: House) -> None:
    _, certificate = house.join(house.token())
    with pytest.raises(CertificateInvalid, match="is for agent 'gpu-7', not for 'gpu-8'"):
        house.come_back(certificate, "gpu-8", key_of("gpu-7"))


def test_another_key_than_the_certificates_is_refused(house: House) -> None:
    _, certificate = house.join(house.token())
    with pytest.raises(CertificateInvalid, match="belongs to another key"):
        house.come_back(certificate, "gpu-7", key_of("thief"))


def test_a_certificate_of_ours_that_nobody_recorded_is_refused(house: House) -> None:
    house.join(house.token())
    stray = issue_certificate(house.store.gateway_identity, "gpu-7", public_bytes(key_of("gpu-7")), 1, NOW_S)
    with rejected(ErrorCode.UNAUTHENTICATED, "no record of this certificate"):
        house.come_back(stray.der)


# --- names ---


def test_a_renamed_agent_is_who_it_was_and_is_sent_its_name(house: House, command: Store) -> None:
    admitted, certificate = house.join(house.token())
    command.agents.rename("gpu-7", "berlin-7")
    returned, welcome = house.come_back(certificate)
    assert returned.name == house.directory.rights(admitted).name == "berlin-7"
    assert welcome.certificate is None, "an agent of an earlier release takes no other name from WELCOME"
    after = renewed(house, returned)
    assert after.certificate.name == "berlin-7"
    again, _ = house.come_back(after.certificate.der, "berlin-7", key_of("gpu-7"))
    assert again.agent_id == admitted.agent_id
    assert not house.directory.renewal_check(house.wall_s)(again)


def test_a_former_name_is_free_and_its_former_holder_is_nobody_else(house: House, command: Store) -> None:
    _, certificate = house.join(house.token())
    command.agents.rename("gpu-7", "berlin-7")
    house.join(house.token(), key=key_of("the next gpu-7"))
    assert house.come_back(certificate)[0].name == "berlin-7"


def test_a_renamed_agent_can_be_revoked_by_its_name_of_now_alone(house: House, command: Store) -> None:
    _, certificate = house.join(house.token())
    command.agents.rename("gpu-7", "berlin-7")
    with pytest.raises(UnknownRecord):
        command.agents.revoke("gpu-7", "", NOW_S)
    command.agents.revoke("berlin-7", "sold", NOW_S)
    with rejected(ErrorCode.REVOKED, "agent berlin-7 was revoked: sold"):
        house.come_back(certificate)


def test_names_that_are_taken_or_none_are_refused(house: House, command: Store) -> None:
    house.join(house.token())
    house.join(house.token(), "gpu-8")
    with pytest.raises(NameTaken):
        command.agents.rename("gpu-7", "gpu-8")
    with pytest.raises(BadValue, match="cannot name an agent"):
        command.agents.rename("gpu-7", "GPU 7")
    with pytest.raises(UnknownRecord):
        command.agents.rename("gpu-9", "gpu-10")
    assert command.agents.rename("gpu-7", "gpu-7").name == "gpu-7"


# --- rights ---


def test_rights_set_anew_are_those_of_connected_agents(house: House, command: Store) -> None:
    admitted, _ = house.join(house.token())
    command.agents.allow("gpu-7", ["llama-*"], None)
    assert house.directory.changed()
    rights = house.directory.rights(admitted)
    assert (rights.models, rights.labels) == (("llama-*",), {"region": "eu"})
    command.agents.allow("gpu-7", None, {})
    assert house.directory.changed()
    assert house.directory.rights(admitted).labels == {}
    with pytest.raises(BadValue):
        command.agents.allow("gpu-7", [], None)
    with pytest.raises(BadValue):
        command.agents.allow("gpu-7", None, {"region": "two words"})


# --- the gateway's key ---


def test_a_new_key_of_the_gateway_reaches_connected_agents_with_a_certificate_by_it(
    house: House, command: Store
) -> None:
    admitted, certificate = house.join(house.token())
    before = house.store.gateway_identity
    command.identity.rotate(30 * DAY_S, house.wall_s)
    assert house.directory.changed()
    assert house.directory.renewal_check(house.wall_s)(admitted)
    fresh, succession = house.directory.renew(admitted, house.wall_s)
    assert succession is not None
    succession.verify()
    assert (succession.old_key, succession.new_key) == (before.public_key, fresh.issuer)
    assert house.come_back(fresh.der)[1].certificate is None
    assert house.come_back(certificate, pinned=before.fingerprint)[1].certificate is None
    to_new = house.come_back(certificate)[1].certificate
    assert to_new is not None, "who trusts the new key with a certificate by the old one gets another"
    assert to_new.issuer == fresh.issuer


def test_after_the_overlap_the_key_before_and_all_it_made_are_refused(house: House, command: Store) -> None:
    admitted, certificate = house.join(house.token())
    token = house.store.tokens.create(365 * DAY_S, 9, ["*"], {}, house.wall_s)[0]
    before = house.store.gateway_identity
    keys = command.identity.rotate(30 * DAY_S, house.wall_s)
    house.join(token, "gpu-8")
    house.wall_s += 30 * DAY_S
    with pytest.raises(GatewayUntrusted, match=r"--join"):
        house.come_back(certificate, pinned=before.fingerprint)
    with pytest.raises(CertificateInvalid, match="not issued by this gateway"):
        house.come_back(certificate, pinned=keys.current.fingerprint)
    with pytest.raises(GatewayUntrusted, match="the join token is for gateway"):
        house.join(token, "gpu-9")
    _, succession = house.directory.renew(admitted, house.wall_s)
    assert succession is None
    house.directory.forget_previous_key(house.wall_s)
    assert house.store.identity.keys.previous is None


def test_a_host_that_was_away_for_all_of_it_joins_again_with_its_key_and_name(
    house: House, command: Store
) -> None:
    admitted, _ = house.join(house.token())
    command.identity.rotate(0.0, house.wall_s)
    again, certificate = house.join(house.token())
    assert again.agent_id == admitted.agent_id
    assert house.come_back(certificate)


def test_a_revoked_agent_does_not_come_back_under_the_new_key(house: House, command: Store) -> None:
    _, certificate = house.join(house.token())
    before = house.store.gateway_identity
    command.agents.revoke("gpu-7", "", NOW_S)
    command.identity.rotate(DAY_S, house.wall_s)
    for pinned in (before.fingerprint, None):
        with pytest.raises(HandshakeRejected) as refused:
            house.come_back(certificate, pinned=pinned)
        assert refused.value.code is ErrorCode.REVOKED
