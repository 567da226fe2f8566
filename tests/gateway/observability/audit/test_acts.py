"""Administrative acts reach the audit log once each, whatever crashes on the way."""

import pytest

from gateway.observability.audit import AuditFiles, append_entries, audit_files, verify
from gateway.observability.audit.records import AuditEntry
from gateway.observability.audit.segments import DIRECTORY, HEAD
from gateway.storage import Store
from gateway.storage.errors import StateBusy
from gateway.storage.locks import Holding
from gateway.storage.sqlite import SqliteDatabase
from tests.gateway.observability.audit.logs import NOON_S, append, entries, kinds, records


@pytest.fixture
def files(store: Store) -> AuditFiles:
    return AuditFiles(store.state_dir / DIRECTORY, lambda: store.gateway_identity)


def names_noted(files: AuditFiles) -> list[str]:
    return [record["name"] for record in records(files.directory) if record["kind"] == "thing.change"]


def test_acts_that_wait_are_taken_up_in_their_order_before_what_else_is_there(
    store: Store, files: AuditFiles
) -> None:
    for name in ("a", "b"):
        store.acts.note("thing.change", name=name, seq="not ours")
    assert append_entries(files, store.acts, NOON_S, entries(1)) == 3
    assert kinds(files.directory) == ["segment", "thing.change", "thing.change", "test"]
    first = records(files.directory)[1]
    assert (first["seq"], first["name"], first["who"][:3]) == (2, "a", "os:")
    assert store.acts.pending(9) == ()
    assert append_entries(files, store.acts, NOON_S) == 0


def test_an_act_that_could_not_be_forgotten_is_not_taken_up_twice(
    store: Store, files: AuditFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    def busy(*_: object) -> None:
        raise StateBusy("just now")

    store.acts.note("thing.change", name="a")
    with monkeypatch.context() as patch:
        patch.setattr(store.acts, "forget", busy)
        append_entries(files, store.acts, NOON_S)
        store.acts.note("thing.change", name="b")
        append_entries(files, store.acts, NOON_S, entries(1))
        append_entries(files, store.acts, NOON_S, entries(1))
    append_entries(files, store.acts, NOON_S)
    assert names_noted(files) == ["a", "b"]
    assert store.acts.pending(9) == ()


def test_an_act_whose_line_was_not_acknowledged_is_not_taken_up_twice(
    store: Store, files: AuditFiles
) -> None:
    append_entries(files, store.acts, NOON_S, entries(1))
    before = (files.directory / HEAD).read_bytes()
    store.acts.note("thing.change", name="a")
    (act,) = store.acts.pending(1)
    append(files, [AuditEntry(NOON_S, act.kind, {"who": "os:x", "name": "a", "act": act.id})], NOON_S)
    (files.directory / HEAD).write_bytes(before)
    append_entries(files, store.acts, NOON_S, entries(1))
    assert names_noted(files) == ["a"]
    assert kinds(files.directory)[-2:] == ["recovered", "test"]


def test_what_else_there_is_is_written_while_the_database_fails(
    store: Store, files: AuditFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise StateBusy("just now")

    store.acts.note("thing.change", name="a")
    identity = store.gateway_identity
    with monkeypatch.context() as patch:
        patch.setattr(SqliteDatabase, "read", fail)
        patch.setattr(files, "signer", lambda: identity)
        assert append_entries(files, store.acts, NOON_S, entries(2)) == 2
        with pytest.raises(StateBusy):
            append_entries(files, store.acts, NOON_S)
    append_entries(files, store.acts, NOON_S)
    assert kinds(files.directory) == ["segment", "test", "test", "thing.change"]


def test_a_key_exchanged_while_somebody_waits_for_the_log_is_the_one_that_counts(
    store: Store, files: AuditFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    append_entries(files, store.acts, NOON_S, entries(1))
    alone = Holding.alone

    def while_waiting(holding: Holding, wait_s: float) -> bool:
        with monkeypatch.context() as patch:
            patch.setattr(Holding, "alone", alone)
            store.identity.rotate(0.0, NOON_S)
            append_entries(audit_files(store), store.acts, NOON_S, entries(1))
        return alone(holding, wait_s)

    with monkeypatch.context() as patch_all:
        patch_all.setattr(Holding, "alone", while_waiting)
        append_entries(files, store.acts, NOON_S, entries(1))
    assert kinds(files.directory) == ["segment", "test", "gateway.rotate_key", "test", "test"]
    assert not verify(files.directory, [store.gateway_identity.public_key]).findings


def test_the_log_goes_on_and_verifies_after_the_gateways_key_was_exchanged_at_once(
    store: Store, files: AuditFiles
) -> None:
    append_entries(files, store.acts, NOON_S, entries(2))
    old = store.gateway_identity.public_key
    store.identity.rotate(0.0, NOON_S)
    append_entries(files, store.acts, NOON_S, entries(2))
    new = store.gateway_identity.public_key
    assert new != old
    assert "head_lost" not in kinds(files.directory)
    assert not verify(files.directory, [new]).findings
    assert store.acts.signer() == new
