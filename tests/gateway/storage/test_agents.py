"""Agents: one key, one name; revoked for good; certificates counted."""

from typing import Any

import pytest

from gateway.storage import Enrolment, Store
from gateway.storage.acts import acting_as, process_owner
from gateway.storage.agents import CERTIFICATES_KEPT, RECENT_KEPT, RECENT_S
from gateway.storage.errors import (
    AgentKeyRevoked,
    EnrolmentRefused,
    UnknownRecord,
)

NOW_S = 1_800_000_000.0
END_S = NOW_S + 90 * 86_400
KEY, OTHER_KEY = b"k" * 32, b"o" * 32


@pytest.fixture
def store(any_store: Store) -> Store:
    return any_store


@pytest.fixture
def token_id(store: Store) -> str:
    return new_token(store, 1)


def new_token(store: Store, uses: int, **changes: Any) -> str:
    values: dict[str, Any] = {"expires_in_s": 3600, "models": ["*"], "labels": {}, "wall_s": NOW_S}
    return store.tokens.create(uses=uses, **(values | changes))[0].id_text


def enrolment(token_id: str, name: str = "gpu-7", key: bytes = KEY, serial: str = "a1") -> Enrolment:
    return Enrolment(token_id, name, key, serial, END_S)


def uses_of(store: Store, token_id: str) -> int:
    record = store.tokens.get(token_id)
    assert record is not None
    return record.uses


def test_an_agent_gets_what_its_token_allows(store: Store) -> None:
    token_id = new_token(store, 1, models=["llama-*"], labels={"region": "eu"})
    record = store.agents.enrol(enrolment(token_id), NOW_S)
    assert (record.name, record.public_key, record.token_id) == ("gpu-7", KEY, token_id)
    assert (record.models, record.labels) == (("llama-*",), {"region": "eu"})
    assert (record.joined_s, record.last_seen_s, record.revoked_s) == (NOW_S, None, None)
    assert record.certificates == {"a1": END_S}
    assert store.agents.get("gpu-7") == record
    assert uses_of(store, token_id) == 1


def test_an_answer_lost_on_its_way_costs_no_second_use(store: Store, token_id: str) -> None:
    first = store.agents.enrol(enrolment(token_id), NOW_S)
    again = store.agents.enrol(enrolment(token_id, serial="b2"), NOW_S + 1)
    assert again.id == first.id
    assert set(again.certificates) == {"a1", "b2"}
    assert uses_of(store, token_id) == 1


def test_a_used_up_token_lets_no_other_key_in(store: Store, token_id: str) -> None:
    store.agents.enrol(enrolment(token_id), NOW_S)
    with pytest.raises(EnrolmentRefused, match="is used up"):
        store.agents.enrol(enrolment(token_id, "gpu-8", OTHER_KEY, "b2"), NOW_S)
    assert len(store.agents.list()) == 1


def test_joining_again_with_another_token_takes_over_what_that_allows(store: Store, token_id: str) -> None:
    store.agents.enrol(enrolment(token_id), NOW_S)
    other = new_token(store, 1, models=["qwen"])
    record = store.agents.enrol(enrolment(other, serial="b2"), NOW_S)
    assert (record.models, record.token_id, record.joined_s) == (("qwen",), other, NOW_S)
    assert uses_of(store, other) == 1


def test_a_name_belongs_to_the_key_that_has_it(store: Store, token_id: str) -> None:
    store.agents.enrol(enrolment(token_id), NOW_S)
    other = new_token(store, 1)
    with pytest.raises(EnrolmentRefused, match="trunkline agents revoke gpu-7"):
        store.agents.enrol(enrolment(other, key=OTHER_KEY, serial="b2"), NOW_S)
    assert uses_of(store, other) == 0


def test_a_key_has_one_name(store: Store, token_id: str) -> None:
    store.agents.enrol(enrolment(token_id), NOW_S)
    other = new_token(store, 1)
    with pytest.raises(EnrolmentRefused, match="use --name gpu-7"):
        store.agents.enrol(enrolment(other, "gpu-8", serial="b2"), NOW_S)
    assert uses_of(store, other) == 0


def test_revoking_frees_the_name_for_another_key_but_not_the_key(store: Store) -> None:
    token_id = new_token(store, 9)
    store.agents.enrol(enrolment(token_id), NOW_S)
    store.agents.revoke("gpu-7", "host sold", NOW_S + 1)
    with pytest.raises(AgentKeyRevoked, match="remove its agent key"):
        store.agents.enrol(enrolment(token_id, serial="b2"), NOW_S)
    with pytest.raises(AgentKeyRevoked):
        store.agents.enrol(enrolment(token_id, "gpu-8", serial="c3"), NOW_S)
    store.agents.enrol(enrolment(token_id, key=OTHER_KEY, serial="d4"), NOW_S)
    active, revoked = store.agents.list()
    assert (active.public_key, active.revoked_s) == (OTHER_KEY, None)
    assert (revoked.public_key, revoked.revoked_s, revoked.revoked_reason) == (KEY, NOW_S + 1, "host sold")


@pytest.mark.parametrize("refusal", ["made no such join token", "was revoked", "has expired"])
def test_a_token_that_is_no_good_enrols_nobody(store: Store, refusal: str) -> None:
    token_id, wall_s = new_token(store, 1), NOW_S
    if "no such" in refusal:
        token_id = "0" * 16
    elif "revoked" in refusal:
        store.tokens.revoke(token_id, NOW_S)
    else:
        wall_s += 3600
    with pytest.raises(EnrolmentRefused, match=refusal):
        store.agents.enrol(enrolment(token_id), wall_s)
    assert store.agents.list() == ()


def test_only_active_agents_can_be_revoked(store: Store, token_id: str) -> None:
    with pytest.raises(UnknownRecord, match="trunkline agents list"):
        store.agents.revoke("gpu-7", "", NOW_S)
    store.agents.enrol(enrolment(token_id), NOW_S)
    store.agents.revoke("gpu-7", "", NOW_S)
    with pytest.raises(UnknownRecord):
        store.agents.revoke("gpu-7", "", NOW_S)
    assert store.agents.get("gpu-7") is None


def test_old_certificates_stay_good_but_not_without_end(store: Store, token_id: str) -> None:
    record = store.agents.enrol(enrolment(token_id, serial="s0"), NOW_S)
    for n in range(1, 8):
        store.agents.renew(record.id, f"s{n}", END_S, NOW_S + n // 3 * RECENT_S)
    renewed = store.agents.get("gpu-7")
    assert renewed is not None
    assert len(renewed.certificates) == CERTIFICATES_KEPT
    assert "s7" in renewed.certificates


def test_recent_certificates_stay_good_up_to_a_number(store: Store, token_id: str) -> None:
    record = store.agents.enrol(enrolment(token_id, serial="s0"), NOW_S)
    for n in range(1, RECENT_KEPT + 5):
        store.agents.renew(record.id, f"s{n}", END_S, NOW_S + n)
    renewed = store.agents.get("gpu-7")
    assert renewed is not None
    assert set(renewed.certificates) == {f"s{n}" for n in range(5, RECENT_KEPT + 5)}


def test_a_certificate_that_seems_over_stays_known_for_the_clock_may_be_wrong(
    store: Store, token_id: str
) -> None:
    record = store.agents.enrol(enrolment(token_id), NOW_S)
    store.agents.renew(record.id, "b2", END_S + 9, END_S + 1)
    renewed = store.agents.get("gpu-7")
    assert renewed is not None
    assert set(renewed.certificates) == {*record.certificates, "b2"}


def test_a_revoked_agents_certificate_is_not_renewed(store: Store, token_id: str) -> None:
    record = store.agents.enrol(enrolment(token_id), NOW_S)
    store.agents.revoke("gpu-7", "", NOW_S)
    with pytest.raises(UnknownRecord):
        store.agents.renew(record.id, "b2", END_S, NOW_S)


def test_being_seen_is_noted_and_is_no_change_of_identity(store: Store, token_id: str) -> None:
    store.agents.enrol(enrolment(token_id), NOW_S)
    revision, _ = store.agents.changed_since(0)
    store.agents.touch(["gpu-7", "unknown"], NOW_S + 5)
    assert store.agents.list()[0].last_seen_s == NOW_S + 5
    assert store.agents.changed_since(revision) == (revision, [])


def test_readers_are_told_of_enrolment_renewal_and_revocation(store: Store) -> None:
    token_id = new_token(store, 2)
    first = store.agents.enrol(enrolment(token_id), NOW_S)
    store.agents.enrol(enrolment(token_id, "gpu-8", OTHER_KEY, "b2"), NOW_S)
    revision, changed = store.agents.changed_since(0)
    assert [record.name for record in changed] == ["gpu-7", "gpu-8"]
    store.agents.renew(first.id, "c3", END_S, NOW_S)
    revision, changed = store.agents.changed_since(revision)
    assert [set(record.certificates) for record in changed] == [{"a1", "c3"}]
    store.agents.revoke("gpu-8", "x", NOW_S)
    _, changed = store.agents.changed_since(revision)
    assert [(record.name, record.revoked_reason) for record in changed] == [("gpu-8", "x")]


def test_joining_again_with_the_same_token_gives_back_nothing_that_was_taken_away(store: Store) -> None:
    token_id = new_token(store, 2, models=["*"], labels={"region": "us"})
    store.agents.enrol(enrolment(token_id), NOW_S)
    store.agents.allow("gpu-7", ["llama-*"], {"region": "eu"})
    again = store.agents.enrol(enrolment(token_id, serial="b2"), NOW_S + 1)
    assert (again.models, again.labels) == (("llama-*",), {"region": "eu"})
    assert uses_of(store, token_id) == 1


def test_a_certificate_made_after_a_clock_was_put_back_is_known(store: Store, token_id: str) -> None:
    record = store.agents.enrol(enrolment(token_id), NOW_S)
    for n in range(CERTIFICATES_KEPT):
        store.agents.renew(record.id, f"ahead-{n}", END_S, NOW_S + 1e6 + n)
    store.agents.renew(record.id, "right", END_S, NOW_S, in_use="ahead-3")
    renewed = store.agents.get("gpu-7")
    assert renewed is not None
    assert {"right", "ahead-3"} <= set(renewed.certificates)
    assert len(renewed.certificates) == CERTIFICATES_KEPT


def test_a_hold_is_of_the_key_whatever_the_name_and_ends_with_it(store: Store, token_id: str) -> None:
    store.agents.enrol(enrolment(token_id), NOW_S)
    with acting_as("key:1"):
        store.agents.hold("gpu-7", 5.0, held=True)
    assert store.agents.hold("gpu-7", 9.0, held=True).held_s == 5.0, "it was held before"
    renamed = store.agents.rename("gpu-7", "gpu-8")
    assert (renamed.held_s, renamed.held_by) == (5.0, "key:1")
    revision, _ = store.agents.changed_since(0)
    freed = store.agents.hold("gpu-8", 6.0, held=False)
    assert (freed.held_s, freed.held_by) == (None, None)
    assert [each.name for each in store.agents.changed_since(revision)[1]] == ["gpu-8"]
    store.agents.revoke("gpu-8", "", 7.0)
    with pytest.raises(UnknownRecord, match="gpu-8"):
        store.agents.hold("gpu-8", 8.0, held=True)
    kinds = [(act.kind, act.who) for act in store.acts.pending(99) if act.kind.endswith("drain")]
    assert kinds == [("agent.drain", "key:1"), ("agent.undrain", process_owner())]
