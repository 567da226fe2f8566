"""Tables and statements are such as PostgreSQL understands, too."""

from collections.abc import Iterator
from dataclasses import replace

import pytest
from sqlalchemy import ClauseElement, Engine, event
from sqlalchemy.dialects import postgresql
from sqlalchemy.dialects.sqlite import Insert
from sqlalchemy.schema import CreateIndex, CreateTable

from gateway.domain.aliases import AliasTarget
from gateway.storage import Account, Amount, Enrolment, Store, UsageGrouping, schema
from gateway.storage.audit_heads import AuditHead
from gateway.storage.ownership import OwnershipClaim
from gateway.storage.processes import ProcessRecord

DIALECT = postgresql.dialect()  # type: ignore[no-untyped-call]


@pytest.fixture
def compiled() -> Iterator[list[str]]:
    """Every statement that is executed, in PostgreSQL's words, but upserts: a database has its own."""
    found: list[str] = []

    def compile_it(_connection: object, statement: ClauseElement, *_: object) -> None:
        if isinstance(statement, ClauseElement) and not isinstance(statement, Insert):
            found.append(str(statement.compile(dialect=DIALECT)))

    event.listen(Engine, "before_execute", compile_it)
    yield found
    event.remove(Engine, "before_execute", compile_it)


def test_every_table_and_index_can_be_made() -> None:
    for table in schema.metadata.sorted_tables:
        assert str(CreateTable(table).compile(dialect=DIALECT)).strip().startswith("CREATE TABLE")
        for index in table.indexes:
            assert str(CreateIndex(index).compile(dialect=DIALECT))


def test_what_the_store_asks_is_no_dialect(store: Store, compiled: list[str]) -> None:
    store.keys.create("k", "t", 1.0)
    store.keys.change("k", {"rpm": 5})
    store.keys.rotate("k", 60.0, 2.0)
    store.keys.touch({store.keys.list()[0].id: 3.0})
    store.keys.revoke("k", 4.0)
    token, _ = store.tokens.create(60.0, 2, ["*"], {}, 1.0)
    store.agents.enrol(Enrolment(token.id_text, "a", bytes(32), "ab", 90.0), 1.0)
    (agent,) = store.agents.list()
    store.agents.renew(agent.id, "cd", 99.0, 2.0, in_use="ab")
    store.agents.rename("a", "b")
    store.agents.touch(["b"], 3.0)
    store.agents.hold("b", 3.0, held=True)
    store.agents.revoke("b", "", 4.0)
    store.tokens.revoke(token.id_text, 5.0)
    for model in ("m", "n"):
        store.aliases.set_targets("chat", (AliasTarget(model, None, 1.0),), 1.0)
    store.aliases.rollback("chat", 2.0)
    store.aliases.remove("chat", 3.0)
    store.limits.tenants.change("t", {"rpm": 1}, 1.0)
    store.limits.tenants.remove("t")
    store.limits.prices.set("m", 1.0, 1.0, 0.0, 1.0)
    assert store.limits.changed_since(0)[1] is not None
    store.models.note({"m": 1.0}, ["m"], 2.0, 1)
    store.models.note({"n": 1.0}, ["m", "n"], 3.0, 1)
    store.usage.add({Account("2026-11-21", "k", "t", "m"): Amount(1, 2, 3)})
    for by in UsageGrouping:
        place = store.usage.totals(by)[0].place
        assert store.usage.totals(by, after=place) == ()
    assert store.usage.spent("2026-11-01")
    store.acts.forget([act.id for act in store.acts.pending(1)])
    process = ProcessRecord("a", 1, None, "host", "1", 1.0)
    store.processes.beat(process, sweep=True)
    store.processes.leave("a", store.processes.next_incarnation("a", 1))
    for each in (process, replace(process, id="b")):
        store.ownership.claim(OwnershipClaim("leader", each.id, 1, 0.0, 1))
    store.ownership.release("leader", "b", 1)
    store.audit_heads.note(AuditHead("a", 1, "0" * 64, 1.0, "host"))
    assert store.audit_heads.list()
    store.audit_heads.forget("a")
    store.identity.rotate(60.0, 1.0)
    store.backup.keep(0.0)
    assert len(compiled) > 80
