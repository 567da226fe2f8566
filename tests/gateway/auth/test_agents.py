"""Admitting agents: enrolment and return through whole handshakes, and revocation."""

import contextlib
import sqlite3
from collections.abc import Iterator

import pytest

from gateway.auth import AgentDirectory
from gateway.storage import DATABASE_NAME, Store
from gateway.storage.sqlite import database
from shared.identity import CERTIFICATE_LIFE_S, JoinToken
from shared.protocol.errors import ErrorCode, HandshakeRejected
from tests.gateway.auth.house import DAY_S, NOW_S, House, rejected
from tests.support.identities import key_of
from tests.support.race import elsewhere


@pytest.fixture
def house(store: Store) -> House:
    return House(store, AgentDirectory(store))


@contextlib.contextmanager
def stuck(house: House, monkeypatch: pytest.MonkeyPatch) -> Iterator[House]:
    """The same house opened anew, with little patience, while another writer holds the database."""
    monkeypatch.setattr(database, "BUSY_TIMEOUT_S", 0.05)
    writer = sqlite3.connect(house.store.state_dir / DATABASE_NAME, isolation_level=None)
    with Store.open(house.store.state_dir) as store:
        writer.execute("BEGIN IMMEDIATE")
        yield House(store, AgentDirectory(store), house.wall_s)
        writer.close()


def test_an_agent_joins_once_and_returns_with_its_certificate(house: House) -> None:
    admitted, certificate = house.join(house.token(models=("llama-*",)))
    assert admitted.name == "gpu-7"
    assert (admitted.principal.models, admitted.principal.labels) == (("llama-*",), {"region": "eu"})
    returned, welcome = house.come_back(certificate)
    assert returned.principal == admitted.principal
    assert welcome.certificate is None


def test_an_agent_whose_welcome_was_lost_joins_again_with_the_same_token(house: House) -> None:
    token = house.token()
    _, lost = house.join(token)
    _, certificate = house.join(token)
    assert house.come_back(certificate)
    assert house.come_back(lost)
    assert house.store.tokens.list()[0].uses == 1


def test_a_second_host_cannot_join_with_a_used_up_token(house: House) -> None:
    token = house.token()
    house.join(token)
    with rejected(ErrorCode.UNAUTHENTICATED, "used up .1 of 1 uses"):
        house.join(token, "gpu-8")


def test_an_expired_token_is_refused_as_that(house: House) -> None:
    token = house.token()
    house.wall_s += DAY_S
    with rejected(ErrorCode.UNAUTHENTICATED, "has expired"):
        house.join(token)


def test_a_revoked_token_is_refused_as_that(house: House) -> None:
    token = house.token()
    house.store.tokens.revoke(token.id_text, NOW_S)
    with rejected(ErrorCode.UNAUTHENTICATED, "was revoked; ask for another"):
        house.join(token)


def test_a_token_with_a_wrong_secret_is_refused_and_costs_no_use(house: House) -> None:
    token = house.token()
    with rejected(ErrorCode.UNAUTHENTICATED, "secret is wrong"):
        house.join(JoinToken(token.id, bytes(16), token.fingerprint))
    assert house.store.tokens.list()[0].uses == 0


def test_a_token_that_was_never_made_is_refused(house: House) -> None:
    with rejected(ErrorCode.UNAUTHENTICATED, "made no such join token"):
        house.join(JoinToken(bytes(8), bytes(16), house.store.gateway_identity.fingerprint))


def test_a_name_held_by_another_key_is_refused_until_it_is_revoked(house: House) -> None:
    token = house.token(uses=3)
    house.join(token)
    with rejected(ErrorCode.UNAUTHENTICATED, "another host is enrolled as agent 'gpu-7'"):
        house.join(token, key=key_of("replacement"))
    house.store.agents.revoke("gpu-7", "", NOW_S)
    house.join(token, key=key_of("replacement"))


def test_a_revoked_agent_is_refused_with_the_reason_given(house: House, command: Store) -> None:
    _, certificate = house.join(house.token())
    command.agents.revoke("gpu-7", "host sold", NOW_S)
    with rejected(ErrorCode.REVOKED, "agent gpu-7 was revoked: host sold"):
        house.come_back(certificate)


def test_a_revoked_agent_does_not_come_back_by_joining(house: House) -> None:
    token = house.token(uses=5)
    house.join(token)
    house.store.agents.revoke("gpu-7", "", NOW_S)
    with rejected(ErrorCode.REVOKED, "this host's key was revoked"):
        house.join(token)


def test_a_certificate_that_the_store_has_forgotten_is_refused(house: House) -> None:
    _, certificate = house.join(house.token())
    house.wall_s += 3600
    for _ in range(4):
        house.wall_s += 1
        house.join(house.token())
    with rejected(ErrorCode.UNAUTHENTICATED, "no record of this certificate"):
        house.come_back(certificate)


def test_a_worn_certificate_is_replaced_and_the_old_one_stays_good(house: House) -> None:
    _, old = house.join(house.token())
    house.wall_s += CERTIFICATE_LIFE_S * 0.7
    admitted, welcome = house.come_back(old)
    assert welcome.certificate is not None
    assert admitted.principal.serial == f"{welcome.certificate.serial:x}"
    house.wall_s += 1
    assert house.come_back(welcome.certificate.der)[1].certificate is None
    assert house.come_back(old)


def test_an_agent_is_let_in_with_a_worn_certificate_when_no_new_one_can_be_stored(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, old = house.join(house.token())
    with stuck(house, monkeypatch) as stuck_house:
        stuck_house.wall_s += CERTIFICATE_LIFE_S * 0.7
        assert stuck_house.come_back(old)[1].certificate is None


def test_an_agent_is_told_to_come_back_when_the_database_fails(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    token = house.token()
    with (
        stuck(house, monkeypatch) as stuck_house,
        pytest.raises(HandshakeRejected, match="cannot use its database just now") as caught,
    ):
        stuck_house.join(token)
    assert (caught.value.code, caught.value.retry_after_s) == (ErrorCode.INTERNAL, 5.0)


def test_nothing_changed_says_so(house: House) -> None:
    assert not house.directory.changed()
    house.join(house.token())
    assert house.directory.changed()
    assert not house.directory.changed()


def test_being_seen_and_keys_made_are_no_change_of_agents(house: House) -> None:
    house.join(house.token())
    assert house.directory.changed()
    house.store.agents.touch(["gpu-7"], NOW_S)
    house.store.keys.create("a", "default", NOW_S)
    assert not house.directory.changed()


def test_a_revocation_by_another_process_is_noticed_by_the_next_look(house: House) -> None:
    admitted, _ = house.join(house.token(), "gpu-7")
    other, _ = house.join(house.token(), "gpu-8")
    house.directory.changed()
    elsewhere(
        "from pathlib import Path\nfrom gateway.storage import Store\n"
        "with Store.open(Path(sys.argv[1])) as store:\n    store.agents.revoke('gpu-7', 'gone', 2.0)",
        str(house.store.state_dir),
    )
    assert house.directory.changed()
    assert house.directory.refusal(admitted) == "agent gpu-7 was revoked: gone"
    assert house.directory.refusal(other) is None


def test_a_revocation_between_admission_and_attachment_is_not_missed(house: House, command: Store) -> None:
    admitted, _ = house.join(house.token())
    command.agents.revoke("gpu-7", "", NOW_S)
    assert house.directory.changed()
    assert house.directory.refusal(admitted) == "agent gpu-7 was revoked"


def test_revoking_a_name_does_not_end_the_session_of_its_next_holder(house: House, command: Store) -> None:
    token = house.token(uses=2)
    first, _ = house.join(token)
    command.agents.revoke("gpu-7", "", NOW_S)
    second, _ = house.join(token, key=key_of("replacement"))
    assert house.directory.refusal(first) == "agent gpu-7 was revoked"
    assert house.directory.refusal(second) is None


def test_an_agent_that_is_held_comes_and_is_known_to_be(house: House) -> None:
    admitted, certificate = house.join(house.token())
    assert not admitted.principal.held
    house.store.agents.hold("gpu-7", NOW_S, held=True)
    assert house.directory.changed()
    assert house.directory.rights(admitted).held
    assert house.come_back(certificate)[0].principal.held
