"""Models once served: remembered in order, no more than there is room for."""

import sqlite3
from pathlib import Path

from gateway.storage import DATABASE_NAME, Store

VERSION_1 = """
CREATE TABLE facts (name VARCHAR NOT NULL, value VARCHAR NOT NULL, PRIMARY KEY (name));
CREATE TABLE revisions (topic VARCHAR NOT NULL, value BIGINT NOT NULL, PRIMARY KEY (topic));
CREATE TABLE join_tokens (id VARCHAR NOT NULL, verifier BLOB NOT NULL, created_s DOUBLE NOT NULL,
    expires_s DOUBLE NOT NULL, uses_allowed INTEGER NOT NULL, uses INTEGER NOT NULL, models JSON NOT NULL,
    labels JSON NOT NULL, revoked_s DOUBLE, PRIMARY KEY (id));
CREATE TABLE api_keys (id VARCHAR NOT NULL, name VARCHAR NOT NULL, tenant VARCHAR NOT NULL,
    digest BLOB NOT NULL, hint VARCHAR NOT NULL, created_s DOUBLE NOT NULL, revoked_s DOUBLE,
    revision BIGINT NOT NULL, PRIMARY KEY (id), UNIQUE (digest));
CREATE UNIQUE INDEX api_keys_active_name ON api_keys (name) WHERE revoked_s IS NULL;
CREATE INDEX ix_api_keys_revision ON api_keys (revision);
CREATE TABLE agents (id INTEGER NOT NULL, name VARCHAR NOT NULL, public_key BLOB NOT NULL,
    models JSON NOT NULL, labels JSON NOT NULL, token_id VARCHAR NOT NULL, joined_s DOUBLE NOT NULL,
    last_seen_s DOUBLE, revoked_s DOUBLE, revoked_reason VARCHAR NOT NULL, revision BIGINT NOT NULL,
    PRIMARY KEY (id), UNIQUE (public_key));
CREATE INDEX ix_agents_revision ON agents (revision);
CREATE UNIQUE INDEX agents_active_name ON agents (name) WHERE revoked_s IS NULL;
CREATE TABLE certificates (serial VARCHAR NOT NULL, agent_id INTEGER NOT NULL, issued_s DOUBLE NOT NULL,
    expires_s DOUBLE NOT NULL, PRIMARY KEY (serial), FOREIGN KEY(agent_id) REFERENCES agents (id));
CREATE INDEX ix_certificates_agent_id ON certificates (agent_id);
INSERT INTO revisions VALUES ('keys', 1), ('agents', 0);
INSERT INTO api_keys VALUES ('key_1', 'laptop', 'default', x'00', 'abcd', 1.0, NULL, 1);
PRAGMA application_id = 1414288212;
PRAGMA user_version = 1;
"""
"""As the first released gateway made it."""


def names(store: Store, most: int = 100) -> list[str]:
    return [fact.name for fact in store.models.list(most)]


def test_a_model_keeps_when_it_was_first_served(store: Store) -> None:
    store.models.note({"a": 5.0}, ["a"], 10.0, 100)
    store.models.note({"a": 20.0}, ["a"], 30.0, 100)
    (fact,) = store.models.list(100)
    assert (fact.name, fact.first_s, fact.last_s) == ("a", 5.0, 30.0)


def test_those_served_last_are_kept_and_listed(store: Store) -> None:
    for wall_s, name in enumerate("abcd"):
        store.models.note({}, [name], float(wall_s), 3)
    assert names(store) == ["b", "c", "d"]
    store.models.note({}, ["b"], 9.0, 3)
    assert names(store) == ["c", "d", "b"]
    assert names(store, 2) == ["d", "b"]


def test_no_model_is_no_write(store: Store) -> None:
    before = store.data_version()
    store.models.note({}, [], 1.0, 3)
    assert store.data_version() == before


def test_a_database_of_the_first_version_is_brought_up_to_date_with_what_it_holds(tmp_path: Path) -> None:
    raw = sqlite3.connect(tmp_path / DATABASE_NAME)
    raw.executescript(VERSION_1)
    raw.close()
    with Store.open(tmp_path) as store:
        assert [(record.name, record.where) for record in store.keys.list()] == [("laptop", None)]
        store.models.note({}, ["a"], 1.0, 3)
    with Store.open(tmp_path) as store:
        assert names(store) == ["a"]
