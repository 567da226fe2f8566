"""Databases of earlier versions, brought to the newest with all that is in them."""

import sqlite3
from pathlib import Path

from gateway.storage import DATABASE_NAME, Account, Amount, Store, UsageGrouping
from gateway.storage.sqlite.database import APPLICATION_ID

BEFORE_7 = """
    DROP TABLE acts;
    DROP TABLE usage;
    CREATE TABLE usage (day VARCHAR NOT NULL, key_id VARCHAR NOT NULL, tenant VARCHAR NOT NULL,
        model VARCHAR NOT NULL, requests BIGINT NOT NULL, prompt_tokens BIGINT NOT NULL,
        completion_tokens BIGINT NOT NULL, cached_tokens BIGINT NOT NULL,
        gpu_s DOUBLE PRECISION DEFAULT 0 NOT NULL, cost DOUBLE PRECISION DEFAULT 0 NOT NULL,
        PRIMARY KEY (day, key_id, tenant, model));
    INSERT INTO usage VALUES ('2026-11-20', 'k', 't', 'm', 3, 30, 6, 1, 1.5, 0.25);
    INSERT INTO usage VALUES ('2026-11-21', 'k', 't', 'm', 1, 10, 2, 0, 0.5, 0.5);
    PRAGMA user_version = 6;
"""


def test_usage_from_before_deployments_were_told_apart_is_kept_and_added_to(tmp_path: Path) -> None:
    with Store.open(tmp_path) as store:
        store.keys.create("alice", "t", 1.0)
    raw = sqlite3.connect(tmp_path / DATABASE_NAME)
    raw.executescript(BEFORE_7)
    assert raw.execute("PRAGMA application_id").fetchone() == (APPLICATION_ID,)
    raw.close()
    with Store.open(tmp_path) as store:
        store.usage.add({Account("2026-11-21", "k", "t", "m", "gpu-1/0"): Amount(1, 100, 1, 0, 2.0, 1.0)})
        assert [(t.name, t.amount) for t in store.usage.totals(UsageGrouping.DAY)] == [
            ("2026-11-20", Amount(3, 30, 6, 1, 1.5, 0.25)),
            ("2026-11-21", Amount(2, 110, 3, 0, 2.5, 1.5)),
        ]
        assert [(t.name, t.amount.requests) for t in store.usage.totals(UsageGrouping.DEPLOYMENT)] == [
            ("", 4),
            ("gpu-1/0", 1),
        ]
        store.acts.note("thing.change")
        assert [key.name for key in store.keys.list()] == ["alice"]
