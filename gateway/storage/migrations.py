"""Makes the tables of a new database, and brings those of an older version to the newest."""

from sqlalchemy import Connection, LargeBinary, insert

from gateway.storage import schema

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
}
"""The statements that bring a database from version n to n + 1; ``{binary}`` is its type for bytes. A step
stays as it was written: it names the tables as they were then. A new database is made at the newest."""


def create_schema(connection: Connection) -> None:
    """Make every table, for a new database."""
    schema.metadata.create_all(connection)
    connection.execute(
        insert(schema.revisions), [{"topic": topic.value, "value": 0} for topic in schema.Topic]
    )


def upgrade_schema(connection: Connection, version: int) -> None:
    """Bring a database of an older version to the newest."""
    for step in range(version, schema.SCHEMA_VERSION):
        upgrade_step(connection, step)


def upgrade_step(connection: Connection, version: int) -> None:
    """Bring a database of ``version`` to the next one."""
    binary = LargeBinary().compile(connection.dialect)
    for statement in UPGRADES[version]:
        connection.exec_driver_sql(statement.format(binary=binary))
