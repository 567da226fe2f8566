"""Databases of earlier versions, brought to the newest with all that is in them."""

import sqlite3
from contextlib import closing
from pathlib import Path

from gateway.domain.jobs import JobNote, JobState, NewJob, ObjectSlice
from gateway.domain.queues import QueueOrigin
from gateway.storage import DATABASE_NAME, Account, Amount, Enrolment, Store, UsageGrouping
from gateway.storage.jobs import JobBounds, JobClaim, Submission
from gateway.storage.processes import ProcessRecord
from gateway.storage.scaling_history import KeptForecast, NotedLoad
from gateway.storage.sqlite.database import APPLICATION_ID
from shared.protocol.progress import Preview, Progress

BEFORE_22 = """
    DROP TABLE scaling_bursts;
    PRAGMA user_version = 21;
"""

BEFORE_21 = (
    BEFORE_22
    + """
    DROP TABLE scaling_loads;
    DROP TABLE scaling_forecasts;
    PRAGMA user_version = 20;
"""
)

BEFORE_20 = (
    BEFORE_21
    + """
    DROP INDEX jobs_states_of_group;
    PRAGMA user_version = 19;
"""
)

BEFORE_19 = (
    BEFORE_20
    + """
    ALTER TABLE queue_jobs DROP COLUMN process;
    PRAGMA user_version = 18;
"""
)

BEFORE_18 = (
    BEFORE_19
    + """
    ALTER TABLE jobs DROP COLUMN previews;
    DROP TABLE job_previews;
    PRAGMA user_version = 17;
"""
)

BEFORE_17 = (
    BEFORE_18
    + """
    DROP TABLE queue_jobs;
    PRAGMA user_version = 16;
"""
)

BEFORE_15 = (
    BEFORE_17
    + """
    DROP TABLE uploads;
    DROP TABLE upload_parts;
    DROP TABLE batches;
    DROP INDEX jobs_unfinished_of_group;
    ALTER TABLE jobs DROP COLUMN metadata;
    PRAGMA user_version = 14;
"""
)

BEFORE_14 = (
    BEFORE_15
    + """
    DROP TABLE webhook_deliveries;
    DROP TABLE webhook_secrets;
    PRAGMA user_version = 13;
"""
)

BEFORE_12 = (
    BEFORE_14
    + """
    DROP TABLE files;
    DROP TABLE jobs;
    DROP TABLE job_queues;
    DROP TABLE submissions;
    PRAGMA user_version = 11;
"""
)

BEFORE_11 = (
    BEFORE_12
    + """
    ALTER TABLE agents DROP COLUMN held_s;
    ALTER TABLE agents DROP COLUMN held_by;
    ALTER TABLE processes DROP COLUMN address;
    ALTER TABLE processes DROP COLUMN knowledge;
    DROP TABLE audit_heads;
    PRAGMA user_version = 10;
"""
)

BEFORE_7 = (
    BEFORE_11
    + """
    DROP TABLE processes;
    DROP TABLE leases;
    DROP TABLE usage_batches;
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
)

BEFORE_9 = (
    BEFORE_11
    + """
    DROP TABLE processes;
    DROP TABLE leases;
    ALTER TABLE acts DROP COLUMN claimed_by;
    ALTER TABLE acts DROP COLUMN claimed_s;
    PRAGMA user_version = 8;
"""
)


def test_acts_that_waited_before_logs_claimed_them_wait_still_and_programs_of_then_may_note_more(
    tmp_path: Path,
) -> None:
    with Store.open(tmp_path) as store:
        store.acts.note("thing.change", name="before")
    with closing(sqlite3.connect(tmp_path / DATABASE_NAME)) as raw:
        raw.executescript(BEFORE_9)
    with Store.open(tmp_path) as store:
        assert store.processes.list().records == ()
        assert store.ownership.read("leader") is None
        with closing(sqlite3.connect(tmp_path / DATABASE_NAME)) as raw, raw:
            raw.execute(
                "INSERT INTO acts (id, at_s, kind, who, what) VALUES ('x', 1.0, 'thing.change', 'os:a', '{}')"
            )
            oldest = raw.execute("SELECT value FROM facts WHERE name = 'schema min reader'").fetchone()
        assert [act.what for act in store.acts.pending(9)] == [{"name": "before"}, {}]
        assert oldest == ("8",), "programs of version 8 go on working with it"


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


def test_nobody_is_held_in_a_store_from_before_holds_and_programs_of_then_go_on_with_it(
    tmp_path: Path,
) -> None:
    with Store.open(tmp_path) as store:
        token, _ = store.tokens.create(60.0, 1, ["*"], {}, 1.0)
        store.agents.enrol(Enrolment(token.id_text, "gpu-1", bytes(32), "ab", 90.0), 1.0)
        store.processes.beat(ProcessRecord("a", 5, "https://a.example", "host", "1.0", 1.0))
    with closing(sqlite3.connect(tmp_path / DATABASE_NAME)) as raw:
        raw.executescript(BEFORE_11)
    with Store.open(tmp_path) as store:
        (agent,) = store.agents.list()
        assert (agent.name, agent.held_s, agent.held_by) == ("gpu-1", None, None)
        (process,) = store.processes.list().records
        assert (process.url, process.address, process.knowledge) == ("https://a.example", None, None)
        with closing(sqlite3.connect(tmp_path / DATABASE_NAME)) as raw, raw:  # as a program of version 10
            raw.execute(
                "INSERT INTO processes (id, incarnation, url, host, version, started, heard, wanted) "
                "VALUES ('b', 1, NULL, 'host', '0.9', 1.0, 1.0, NULL)"
            )
            oldest = raw.execute("SELECT value FROM facts WHERE name = 'schema min reader'").fetchone()
        assert [each.id for each in store.processes.list().records] == ["a", "b"]
        assert oldest == ("8",)


def test_a_job_that_ran_before_previews_were_kept_gets_them_and_programs_of_then_go_on(
    tmp_path: Path,
) -> None:
    claim = JobClaim("p", 1, "m", 1, 60.0)
    with Store.open(tmp_path) as store:
        job = NewJob("j", "t", "k", "m", "/v1/embeddings", ObjectSlice("b"))
        store.jobs.submit(Submission("t", (job,)), JobBounds(), 1.0)
        (running,) = store.job_claims.claim(claim, 1.0)
        assert running.lease is not None
        assert store.job_claims.note_progress([JobNote("j", running.lease, Progress(0.5, "half"))])
    with closing(sqlite3.connect(tmp_path / DATABASE_NAME)) as raw:
        raw.executescript(BEFORE_18)
    with Store.open(tmp_path) as store:
        found = store.jobs.get("j")
        assert (found.progress, found.progress_text, found.previews) == (0.5, "half", 0)
        picture = Preview("image/png", b"x")
        assert store.job_claims.note_progress([JobNote("j", running.lease, Progress(0.6, "", picture))])
        assert store.jobs.preview("j") == picture
        with closing(sqlite3.connect(tmp_path / DATABASE_NAME)) as raw:
            oldest = raw.execute("SELECT value FROM facts WHERE name = 'schema min reader'").fetchone()
        assert oldest == ("8",)


def test_a_store_from_before_files_and_jobs_gets_their_tables(tmp_path: Path) -> None:
    with Store.open(tmp_path) as store:
        store.tokens.create(3600.0, 5, ["*"], {}, 1.0)
    with closing(sqlite3.connect(tmp_path / DATABASE_NAME)) as connection:
        connection.executescript(BEFORE_12)
    with Store.open(tmp_path) as store:
        assert len(store.tokens.list()) == 1
        assert store.jobs.count() == {}
        assert store.files.list("t") == ()


def test_a_job_from_before_webhooks_were_sent_tells_its_end_once_the_store_can(tmp_path: Path) -> None:
    job = NewJob("j", "t", "k", "m", "/v1/embeddings", ObjectSlice("b"), webhook="https://h.example/")
    with Store.open(tmp_path) as store:
        store.jobs.submit(Submission("t", (job,)), JobBounds(), 1.0)
    with closing(sqlite3.connect(tmp_path / DATABASE_NAME)) as connection:
        connection.executescript(BEFORE_14)
    with Store.open(tmp_path) as store:
        assert store.webhooks.list() == ()
        store.jobs.cancel("j", 2.0, 3.0)
        (delivery,) = store.webhooks.list()
        assert (delivery.event.type, delivery.event.url) == ("job.cancelled", "https://h.example/")
        with closing(sqlite3.connect(tmp_path / DATABASE_NAME)) as raw:
            oldest = raw.execute("SELECT value FROM facts WHERE name = 'schema min reader'").fetchone()
        assert oldest == ("8",), "programs of before go on working with it"


def test_replies_of_queues_from_before_their_owners_were_noted_go_on(tmp_path: Path) -> None:
    origin = QueueOrigin("orders", "1", "answers")
    with Store.open(tmp_path) as store:
        job = NewJob("j", "t", "k", "m", "/v1/embeddings", ObjectSlice("b"))
        store.jobs.submit(Submission("t", (job,), "queue 1", b"f", origin), JobBounds(), 1.0)
        assert store.job_claims.claim(JobClaim("p", 1, "m", 1, 60.0), 1.0)
    with closing(sqlite3.connect(tmp_path / DATABASE_NAME)) as raw, raw:
        raw.execute("UPDATE jobs SET state = 'succeeded', finished_s = 2.0")
        raw.executescript(BEFORE_19)
    with Store.open(tmp_path) as store:
        assert store.queue_jobs.begin("a", "first") is None
        (reply,) = store.queue_jobs.claim(["orders"], 1, 60.0, 2.0, "a")
        assert reply.origin == origin
        assert store.queue_jobs.begin("a", "second") == "first"
        assert store.queue_jobs.claim(["orders"], 1, 60.0, 2.0, "b")
        with closing(sqlite3.connect(tmp_path / DATABASE_NAME)) as raw:
            oldest = raw.execute("SELECT value FROM facts WHERE name = 'schema min reader'").fetchone()
        assert oldest == ("8",)


def test_the_states_of_a_group_are_counted_by_an_index_in_old_stores_too(tmp_path: Path) -> None:
    with Store.open(tmp_path) as store:
        job = NewJob("j", "t", "k", "m", "/v1/embeddings", ObjectSlice("b"), group="g")
        store.jobs.submit(Submission("t", (job,)), JobBounds(), 1.0)
    with closing(sqlite3.connect(tmp_path / DATABASE_NAME)) as raw:
        raw.executescript(BEFORE_20)
    with Store.open(tmp_path) as store:
        assert store.jobs.count(group="g") == {JobState.QUEUED: 1}
    with closing(sqlite3.connect(tmp_path / DATABASE_NAME)) as raw:
        query = "SELECT state, count(*) FROM jobs WHERE group_id = 'g' GROUP BY state"
        (plan,) = [row[3] for row in raw.execute(f"EXPLAIN QUERY PLAN {query}")]
    assert plan == "SEARCH jobs USING COVERING INDEX jobs_states_of_group (group_id=?)"


def test_a_store_from_before_forecasts_gets_their_tables(tmp_path: Path) -> None:
    Store.open(tmp_path).close()
    with closing(sqlite3.connect(tmp_path / DATABASE_NAME)) as raw:
        raw.executescript(BEFORE_21)
    with Store.open(tmp_path) as store:
        store.scaling_history.note([NotedLoad("m", "l4", 86_400.0, 1.5)])
        store.scaling_history.keep_forecasts([KeptForecast("m", "l4", 5.0, {"state": "learning"})])
        assert store.scaling_history.read([("m", "l4")], 0.0)["m", "l4"][1][0] == 1.5
        assert len(store.scaling_history.forecasts(0.0)) == 1


def test_a_history_from_before_bursts_is_read_as_it_was_and_goes_on_with_them(tmp_path: Path) -> None:
    with Store.open(tmp_path) as store:
        store.scaling_history.note([NotedLoad("m", "l4", 86_400.0, 1.5)])
    with closing(sqlite3.connect(tmp_path / DATABASE_NAME)) as raw:
        raw.executescript(BEFORE_22)
    with Store.open(tmp_path) as store:
        history, name = store.scaling_history, ("m", "l4")
        assert history.read([name], 0.0)[name][1][0] == 1.5
        assert history.read_bursts([name], 0.0) == {}
        history.note([NotedLoad(*name, 86_700.0, 2.5, bytes([1]) * 30)])
        assert history.read([name], 0.0)[name][1][:2] == [1.5, 2.5]
        assert history.read_bursts([name], 0.0)[name][1][:60] == bytes(30) + bytes([1]) * 30
