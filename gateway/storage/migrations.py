"""Makes the tables of a new database, brings those of an older version to the newest, and says which programs
can work with which.

A program may use a database of a later version than its own if that version's ``min_reader`` allows it: so
the gateways of a site can be upgraded one after the other.
"""

from functools import lru_cache
from typing import Any

from sqlalchemy import Connection, LargeBinary, MetaData, create_mock_engine, insert, select

from gateway.storage import schema
from gateway.storage.errors import StateTooNew

UPGRADES: dict[int, tuple[str, ...]] = {
    1: (
        "CREATE TABLE models (name VARCHAR NOT NULL, first_s DOUBLE PRECISION NOT NULL, "
        "last_s DOUBLE PRECISION NOT NULL, PRIMARY KEY (name))",
        "CREATE TABLE usage (day VARCHAR NOT NULL, key_id VARCHAR NOT NULL, tenant VARCHAR NOT NULL, "
        "model VARCHAR NOT NULL, requests BIGINT NOT NULL, prompt_tokens BIGINT NOT NULL, "
        "completion_tokens BIGINT NOT NULL, cached_tokens BIGINT NOT NULL, "
        "PRIMARY KEY (day, key_id, tenant, model))",
    ),
    2: ("ALTER TABLE api_keys ADD COLUMN residency JSON",),
    3: (
        "CREATE TABLE aliases (name VARCHAR NOT NULL, definition JSON NOT NULL, "
        "created_s DOUBLE PRECISION NOT NULL, changed_s DOUBLE PRECISION NOT NULL, PRIMARY KEY (name))",
        "CREATE TABLE alias_changes (id INTEGER NOT NULL, name VARCHAR NOT NULL, "
        "at_s DOUBLE PRECISION NOT NULL, what VARCHAR NOT NULL, definition JSON, PRIMARY KEY (id))",
        "CREATE INDEX ix_alias_changes_name ON alias_changes (name)",
        "INSERT INTO revisions (topic, value) VALUES ('aliases', 0)",
    ),
    4: (
        "ALTER TABLE api_keys ADD COLUMN scopes JSON",
        "ALTER TABLE api_keys ADD COLUMN role VARCHAR",
        "ALTER TABLE api_keys ADD COLUMN expires_s DOUBLE PRECISION",
        "ALTER TABLE api_keys ADD COLUMN previous_digest {binary}",
        "ALTER TABLE api_keys ADD COLUMN previous_until_s DOUBLE PRECISION",
        "ALTER TABLE api_keys ADD COLUMN last_used_s DOUBLE PRECISION",
    ),
    5: (
        "ALTER TABLE api_keys ADD COLUMN rpm BIGINT",
        "ALTER TABLE api_keys ADD COLUMN tpm BIGINT",
        "ALTER TABLE api_keys ADD COLUMN concurrency BIGINT",
        "ALTER TABLE usage ADD COLUMN gpu_s DOUBLE PRECISION DEFAULT 0 NOT NULL",
        "ALTER TABLE usage ADD COLUMN cost DOUBLE PRECISION DEFAULT 0 NOT NULL",
        "CREATE TABLE tenants (name VARCHAR NOT NULL, rpm BIGINT, tpm BIGINT, concurrency BIGINT, "
        "tokens_per_day BIGINT, tokens_per_month BIGINT, gpu_seconds_per_day DOUBLE PRECISION, "
        "gpu_seconds_per_month DOUBLE PRECISION, money_per_day DOUBLE PRECISION, "
        "money_per_month DOUBLE PRECISION, queue_share DOUBLE PRECISION, weight DOUBLE PRECISION, "
        "changed_s DOUBLE PRECISION NOT NULL, PRIMARY KEY (name))",
        "CREATE TABLE prices (model VARCHAR NOT NULL, input DOUBLE PRECISION NOT NULL, "
        "output DOUBLE PRECISION NOT NULL, gpu_second DOUBLE PRECISION NOT NULL, "
        "changed_s DOUBLE PRECISION NOT NULL, PRIMARY KEY (model))",
        "INSERT INTO revisions (topic, value) VALUES ('limits', 0)",
    ),
    6: (
        "CREATE TABLE acts (number INTEGER NOT NULL, id VARCHAR NOT NULL, at_s DOUBLE PRECISION NOT NULL, "
        "kind VARCHAR NOT NULL, who VARCHAR NOT NULL, what JSON NOT NULL, PRIMARY KEY (number), UNIQUE (id))",
        "ALTER TABLE usage RENAME TO usage_before",
        "CREATE TABLE usage (day VARCHAR NOT NULL, key_id VARCHAR NOT NULL, tenant VARCHAR NOT NULL, "
        "model VARCHAR NOT NULL, deployment VARCHAR NOT NULL, requests BIGINT NOT NULL, "
        "prompt_tokens BIGINT NOT NULL, completion_tokens BIGINT NOT NULL, cached_tokens BIGINT NOT NULL, "
        "gpu_s DOUBLE PRECISION DEFAULT 0 NOT NULL, cost DOUBLE PRECISION DEFAULT 0 NOT NULL, "
        "PRIMARY KEY (day, key_id, tenant, model, deployment))",
        "INSERT INTO usage SELECT day, key_id, tenant, model, '', requests, prompt_tokens, "
        "completion_tokens, cached_tokens, gpu_s, cost FROM usage_before",
        "DROP TABLE usage_before",
    ),
    7: (
        "CREATE TABLE usage_batches (process {text} NOT NULL, batch BIGINT NOT NULL, "
        "added_s DOUBLE PRECISION NOT NULL, PRIMARY KEY (process, batch))",
    ),
    8: (
        "ALTER TABLE acts ADD COLUMN claimed_by {text}",
        "ALTER TABLE acts ADD COLUMN claimed_s DOUBLE PRECISION",
        "CREATE TABLE processes (id {text} NOT NULL, incarnation BIGINT NOT NULL, url {text}, "
        "host {text} NOT NULL, version {text} NOT NULL, started DOUBLE PRECISION NOT NULL, "
        "heard DOUBLE PRECISION NOT NULL, PRIMARY KEY (id))",
        "CREATE TABLE leases (name {text} NOT NULL, owner {text}, incarnation BIGINT NOT NULL, "
        "epoch BIGINT NOT NULL, until DOUBLE PRECISION NOT NULL, PRIMARY KEY (name))",
    ),
    9: ("ALTER TABLE processes ADD COLUMN wanted {text}",),
    10: (
        "ALTER TABLE agents ADD COLUMN held_s DOUBLE PRECISION",
        "ALTER TABLE agents ADD COLUMN held_by {text}",
        "ALTER TABLE processes ADD COLUMN address {text}",
        "ALTER TABLE processes ADD COLUMN knowledge {text}",
        "CREATE TABLE audit_heads (chain {text} NOT NULL, seq BIGINT NOT NULL, hash {text} NOT NULL, "
        "at_s DOUBLE PRECISION NOT NULL, host {text} NOT NULL, PRIMARY KEY (chain))",
    ),
    11: (
        "CREATE TABLE jobs (number {number} NOT NULL, id {text} NOT NULL, tenant {text} NOT NULL, "
        "key_id {text} NOT NULL, model {text} NOT NULL, path {text} NOT NULL, tier {text} NOT NULL, "
        "state {text} NOT NULL, headers JSON NOT NULL, body {text} NOT NULL, body_start BIGINT NOT NULL, "
        "body_stop BIGINT, group_id {text}, custom_id {text}, webhook {text}, deadline_s DOUBLE PRECISION, "
        "predicted_s DOUBLE PRECISION, predicted_cost DOUBLE PRECISION, "
        "not_before_s DOUBLE PRECISION NOT NULL, created_s DOUBLE PRECISION NOT NULL, "
        "attempts INTEGER NOT NULL, cancelling INTEGER NOT NULL, process {text}, incarnation BIGINT, "
        "generation BIGINT NOT NULL, lease_until DOUBLE PRECISION, progress DOUBLE PRECISION, "
        "progress_text {text}, started_s DOUBLE PRECISION, finished_s DOUBLE PRECISION, "
        "kept_until_s DOUBLE PRECISION, status INTEGER, result_headers JSON, result {text}, "
        "result_bytes BIGINT, error JSON, PRIMARY KEY (number), UNIQUE (id))",
        "CREATE INDEX jobs_queued ON jobs (model, tenant, number) WHERE state = 'queued'",
        "CREATE INDEX jobs_running ON jobs (lease_until) WHERE state = 'running'",
        "CREATE INDEX jobs_deadline ON jobs (deadline_s) WHERE finished_s IS NULL",
        "CREATE INDEX jobs_kept ON jobs (kept_until_s) WHERE finished_s IS NOT NULL",
        "CREATE INDEX jobs_of_tenant ON jobs (tenant, number)",
        "CREATE INDEX jobs_of_group ON jobs (group_id, number) WHERE group_id IS NOT NULL",
        "CREATE TABLE job_queues (model {text} NOT NULL, tenant {text} NOT NULL, queued BIGINT NOT NULL, "
        "running BIGINT NOT NULL, virtual DOUBLE PRECISION NOT NULL, PRIMARY KEY (model, tenant))",
        'CREATE TABLE submissions (tenant {text} NOT NULL, "key" {text} NOT NULL, '
        "fingerprint {binary} NOT NULL, made JSON NOT NULL, at_s DOUBLE PRECISION NOT NULL, "
        'PRIMARY KEY (tenant, "key"))',
    ),
    12: (
        "CREATE TABLE files (number {number} NOT NULL, id {text} NOT NULL, tenant {text} NOT NULL, "
        "key_id {text} NOT NULL, filename {text} NOT NULL, purpose {text} NOT NULL, state {text} NOT NULL, "
        "size_bytes BIGINT NOT NULL, sha256 {text}, created_s DOUBLE PRECISION NOT NULL, "
        "expires_s DOUBLE PRECISION, PRIMARY KEY (number), UNIQUE (id))",
        "CREATE INDEX files_of_tenant ON files (tenant, number)",
        "CREATE INDEX files_expiring ON files (expires_s) WHERE expires_s IS NOT NULL",
        "CREATE INDEX files_unfinished ON files (created_s) WHERE state != 'ready'",
    ),
    13: (
        "CREATE TABLE webhook_deliveries (number {number} NOT NULL, id {text} NOT NULL, "
        "tenant {text} NOT NULL, object_id {text} NOT NULL, type {text} NOT NULL, url {text} NOT NULL, "
        "host {text} NOT NULL, state {text} NOT NULL, created_s DOUBLE PRECISION NOT NULL, "
        "next_s DOUBLE PRECISION NOT NULL, attempts INTEGER NOT NULL, generation BIGINT NOT NULL, "
        "lease_until DOUBLE PRECISION, attempted_s DOUBLE PRECISION, ended_s DOUBLE PRECISION, "
        "status INTEGER, error {text}, PRIMARY KEY (number), UNIQUE (id))",
        "CREATE INDEX webhook_deliveries_due ON webhook_deliveries (next_s) WHERE state = 'waiting'",
        "CREATE INDEX webhook_deliveries_ended ON webhook_deliveries (ended_s) WHERE ended_s IS NOT NULL",
        "CREATE INDEX webhook_deliveries_of_object ON webhook_deliveries (object_id)",
        "CREATE TABLE webhook_secrets (tenant {text} NOT NULL, secret {text} NOT NULL, "
        "created_s DOUBLE PRECISION NOT NULL, rotated_s DOUBLE PRECISION, previous {text}, "
        "previous_until_s DOUBLE PRECISION, PRIMARY KEY (tenant))",
    ),
    14: ("ALTER TABLE jobs ADD COLUMN metadata JSON",),
    15: (
        "CREATE TABLE uploads (number {number} NOT NULL, id {text} NOT NULL, tenant {text} NOT NULL, "
        "key_id {text} NOT NULL, filename {text} NOT NULL, mime_type {text} NOT NULL, "
        "purpose {text} NOT NULL, state {text} NOT NULL, size_bytes BIGINT NOT NULL, "
        "created_s DOUBLE PRECISION NOT NULL, expires_s DOUBLE PRECISION NOT NULL, "
        "file_kept_s DOUBLE PRECISION, file_id {text}, PRIMARY KEY (number), UNIQUE (id))",
        "CREATE INDEX uploads_expiring ON uploads (expires_s)",
        "CREATE TABLE upload_parts (id {text} NOT NULL, upload_id {text} NOT NULL, state {text} NOT NULL, "
        "size_bytes BIGINT NOT NULL, created_s DOUBLE PRECISION NOT NULL, PRIMARY KEY (id))",
        "CREATE INDEX ix_upload_parts_upload_id ON upload_parts (upload_id)",
        "CREATE TABLE batches (number {number} NOT NULL, id {text} NOT NULL, tenant {text} NOT NULL, "
        "key_id {text} NOT NULL, state {text} NOT NULL, endpoint {text} NOT NULL, "
        "completion_window {text} NOT NULL, input_file_id {text} NOT NULL, metadata JSON, principal JSON, "
        "output_kept_s DOUBLE PRECISION, webhook {text}, model {text}, errors JSON, usage JSON, "
        "total BIGINT NOT NULL, submitted BIGINT NOT NULL, read_bytes BIGINT NOT NULL, "
        "completed BIGINT, failed BIGINT, output_file_id {text}, error_file_id {text}, "
        "created_s DOUBLE PRECISION NOT NULL, expires_s DOUBLE PRECISION NOT NULL, "
        "in_progress_s DOUBLE PRECISION, "
        "finalizing_s DOUBLE PRECISION, completed_s DOUBLE PRECISION, failed_s DOUBLE PRECISION, "
        "expired_s DOUBLE PRECISION, cancelling_s DOUBLE PRECISION, cancelled_s DOUBLE PRECISION, "
        "process {text}, generation BIGINT NOT NULL, lease_until DOUBLE PRECISION, "
        "PRIMARY KEY (number), UNIQUE (id))",
        "CREATE INDEX batches_of_tenant ON batches (tenant, number)",
        "CREATE INDEX batches_open ON batches (input_file_id) "
        "WHERE (state NOT IN ('cancelled', 'completed', 'expired', 'failed'))",
        "CREATE INDEX jobs_unfinished_of_group ON jobs (group_id) "
        "WHERE group_id IS NOT NULL AND finished_s IS NULL",
    ),
    16: (
        "CREATE TABLE queue_jobs (number {number} NOT NULL, job_id {text} NOT NULL, source {text} NOT NULL, "
        "message_id {text} NOT NULL, reply_to {text}, stream INTEGER NOT NULL, sequence BIGINT NOT NULL, "
        "since BIGINT NOT NULL, start BIGINT NOT NULL, stop BIGINT NOT NULL, is_sent INTEGER NOT NULL, "
        "next_s DOUBLE PRECISION NOT NULL, attempts INTEGER NOT NULL, generation BIGINT NOT NULL, "
        "lease_until DOUBLE PRECISION, failing_since_s DOUBLE PRECISION, PRIMARY KEY (number), "
        "UNIQUE (job_id))",
        "CREATE INDEX queue_jobs_of_source ON queue_jobs (source, next_s)",
    ),
    17: (
        "ALTER TABLE jobs ADD COLUMN previews INTEGER",
        "CREATE TABLE job_previews (job_id {text} NOT NULL, type {text} NOT NULL, data {binary} NOT NULL, "
        "PRIMARY KEY (job_id))",
    ),
    18: ("ALTER TABLE queue_jobs ADD COLUMN process {text}",),
    19: ("CREATE INDEX jobs_states_of_group ON jobs (group_id, state) WHERE group_id IS NOT NULL",),
    20: (
        "CREATE TABLE scaling_loads (model {text} NOT NULL, device {text} NOT NULL, day INTEGER NOT NULL, "
        "loads {binary} NOT NULL, PRIMARY KEY (model, device, day))",
        "CREATE TABLE scaling_forecasts (model {text} NOT NULL, device {text} NOT NULL, "
        "made_s DOUBLE PRECISION NOT NULL, said JSON NOT NULL, PRIMARY KEY (model, device))",
    ),
    21: (
        "CREATE TABLE scaling_bursts (model {text} NOT NULL, device {text} NOT NULL, day INTEGER NOT NULL, "
        "bursts {binary} NOT NULL, PRIMARY KEY (model, device, day))",
    ),
}
"""The statements that bring a database from version n to n + 1; ``{binary}`` is its type for bytes,
``{text}`` that for text, ``{number}`` that for numbers it gives itself. A step stays as it was written: it
names the tables as they were then. A new database is made at the newest."""

MIN_READER = 8
"""The oldest version of a program that can work with a database of ``SCHEMA_VERSION``. It rises when a column
goes or means something else, and stays where tables or columns with defaults are added. Programs before 8
look at nothing but the version."""

VERSION_FACT, MIN_READER_FACT = "schema version", "schema min reader"
OWN_FACTS = (VERSION_FACT, MIN_READER_FACT)
"""Facts about the tables themselves."""


def read_version(connection: Connection) -> int | None:
    """The version that the database says it has; None: it says nothing."""
    return _read_number(connection, VERSION_FACT)


def write_version(connection: Connection) -> None:
    """Have the database say that it is of the newest version, and who can work with it."""
    facts = schema.facts
    for name, value in ((VERSION_FACT, schema.SCHEMA_VERSION), (MIN_READER_FACT, MIN_READER)):
        said = facts.c.name == name
        if connection.execute(facts.update().where(said).values(value=str(value))).rowcount == 0:
            connection.execute(insert(facts).values(name=name, value=str(value)))


def refuse_too_new(version: int, connection: Connection, place: str) -> None:
    """Raises StateTooNew for a database of a later version with which this program cannot work."""
    if version <= schema.SCHEMA_VERSION:
        return
    oldest = _read_number(connection, MIN_READER_FACT) or version
    if oldest > schema.SCHEMA_VERSION:
        raise StateTooNew(
            f"{place} was written by a later version of Trunkline (schema {version}, for programs of schema "
            f"{oldest} and later; this one is of {schema.SCHEMA_VERSION}): upgrade Trunkline, or use another "
            "state directory or store"
        )


def _read_number(connection: Connection, name: str) -> int | None:
    value = connection.execute(select(schema.facts.c.value).where(schema.facts.c.name == name)).scalar()
    return int(value) if value is not None and value.isdecimal() else None


@lru_cache(maxsize=2)
def _statements(tables: MetaData, dialect: str) -> tuple[str, ...]:
    """What makes the tables in a database of that kind: the same for each, and long in the making."""
    made: list[str] = []

    def note(statement: Any, *_: object, **__: object) -> None:
        made.append(str(statement.compile(dialect=engine.dialect)))

    engine = create_mock_engine(f"{dialect}://", note)
    tables.create_all(engine, checkfirst=False)
    return tuple(made)


def create_schema(connection: Connection, tables: MetaData = schema.metadata) -> None:
    """Make every table, for a new database; ``tables`` as the database is to have them."""
    statements = _statements(tables, connection.dialect.name)
    if connection.dialect.name != "sqlite":  # whose cursors take one at a time
        statements = (";\n".join(statements),)
    for statement in statements:
        connection.exec_driver_sql(statement, execution_options={"no_parameters": True})
    connection.execute(
        insert(schema.revisions), [{"topic": topic.value, "value": 0} for topic in schema.Topic]
    )


def upgrade_schema(connection: Connection, version: int, text: str = "VARCHAR") -> None:
    """Bring a database of an older version to the newest. ``text`` is its type for text."""
    for step in range(version, schema.SCHEMA_VERSION):
        upgrade_step(connection, step, text)


def upgrade_step(connection: Connection, version: int, text: str = "VARCHAR") -> None:
    """Bring a database of ``version`` to the next one."""
    binary = LargeBinary().compile(connection.dialect)
    number = "INTEGER" if connection.dialect.name == "sqlite" else "SERIAL"
    for statement in UPGRADES[version]:
        connection.exec_driver_sql(statement.format(binary=binary, text=text, number=number))
