"""The database is asked for acts while it may have some, and only then."""

import pytest

from gateway.observability.audit import Retention
from gateway.observability.audit.segments import DIRECTORY
from gateway.observability.audit.waiting_acts import ASKED_AGAIN_S, WaitingActs
from gateway.observability.audit.writer import AuditSettings, audit_writer
from gateway.storage import Store
from gateway.storage.acts import AdminAction
from gateway.storage.errors import StateBusy
from tests.gateway.observability.audit.logs import NOON_S, kinds

ACT = AdminAction("1", NOON_S, "key.create", "os:me", {})


class Database:
    """Has acts and the key that signed last; counts what it is asked."""

    def __init__(self) -> None:
        self.acts: tuple[AdminAction, ...] = ()
        self.signed_by: bytes | None = None
        self.asked: list[str] = []
        self.now_s = 0.0
        self.fails = False

    def clock(self) -> float:
        return self.now_s

    def pending(self, most: int) -> tuple[AdminAction, ...]:
        self.asked.append("acts")
        if self.fails:
            raise StateBusy("locked")
        return self.acts

    def forget(self, ids: object) -> None:
        self.acts = ()

    def signer(self) -> bytes | None:
        self.asked.append("signer")
        return self.signed_by

    def note_signer(self, public_key: bytes) -> None:
        self.signed_by = public_key


@pytest.fixture
def database() -> Database:
    return Database()


@pytest.fixture
def acts(database: Database) -> WaitingActs:
    acts = WaitingActs(database, database.clock)
    acts.look_for(1)
    return acts


def test_it_is_asked_again_when_something_changed_when_nobody_knows_and_every_minute(
    database: Database, acts: WaitingActs
) -> None:
    assert acts.pending(5) == ()
    acts.look_for(1)
    assert acts.pending(5) is None, "which is not to say that there are none"
    acts.look_for(2)
    assert acts.pending(5) == ()
    for _ in range(2):
        acts.look_for(None)
        assert acts.pending(5) == ()
    acts.look_for(2)
    assert acts.pending(5) == ()
    database.now_s = ASKED_AGAIN_S
    assert acts.pending(5) == ()
    assert database.asked == ["acts"] * 6


def test_it_is_asked_until_none_wait(database: Database, acts: WaitingActs) -> None:
    database.acts = (ACT,)
    assert acts.pending(5) == acts.pending(5) == (ACT,)
    acts.forget(["1"])
    assert acts.pending(5) == ()
    assert acts.pending(5) is None


def test_a_database_that_failed_is_asked_again(database: Database, acts: WaitingActs) -> None:
    database.fails = True
    for _ in range(2):
        with pytest.raises(StateBusy):
            acts.pending(5)
    database.fails, database.acts = False, (ACT,)
    assert acts.pending(5) == (ACT,)


def test_the_key_that_signed_last_is_read_once_at_each_change(database: Database, acts: WaitingActs) -> None:
    assert acts.signer() is None
    acts.note_signer(b"k")
    assert [acts.signer(), acts.signer()] == [b"k", b"k"]
    assert database.asked == ["signer"] * 2
    database.signed_by = b"l"
    acts.look_for(2)
    assert acts.signer() == b"l"


def test_an_act_is_not_left_behind_where_the_database_failed_and_nothing_changes_any_more(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.keys.create("first", "t", NOON_S)
    writer = audit_writer(store, AuditSettings(), Retention())
    with monkeypatch.context() as patch:

        def busy(most: int) -> None:
            raise StateBusy("locked")

        patch.setattr(store.acts, "pending", busy)
        writer.note("agent.connect")
        assert writer.write()
    assert "key.create" not in kinds(store.state_dir / DIRECTORY)
    writer.note("agent.connect")
    assert writer.write()
    assert "key.create" in kinds(store.state_dir / DIRECTORY)
