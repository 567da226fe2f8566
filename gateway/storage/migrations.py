"""Makes the tables of a new database, and brings those of an older version to the newest.

A step stays as it was written: it names the tables as they were then, not as :mod:`gateway.storage.schema`
has them now.
"""

from collections.abc import Callable

from sqlalchemy import Connection, LargeBinary, insert

from gateway.storage import schema


def _to_version_2(connection: Connection) -> None:
    connection.exec_driver_sql(
        "CREATE TABLE models (name VARCHAR NOT NULL, first_s DOUBLE PRECISION NOT NULL, "
        "last_s DOUBLE PRECISION NOT NULL, PRIMARY KEY (name))"
    )
    connection.exec_driver_sql(
        "CREATE TABLE usage (day VARCHAR NOT NULL, key_id VARCHAR NOT NULL, tenant VARCHAR NOT NULL, "
        "model VARCHAR NOT NULL, requests BIGINT NOT NULL, prompt_tokens BIGINT NOT NULL, "
        "completion_tokens BIGINT NOT NULL, cached_tokens BIGINT NOT NULL, "
        "PRIMARY KEY (day, key_id, tenant, model))"
    )


def _to_version_3(connection: Connection) -> None:
    connection.exec_driver_sql("ALTER TABLE api_keys ADD COLUMN residency JSON")


def _to_version_4(connection: Connection) -> None:
    connection.exec_driver_sql(
        "CREATE TABLE aliases (name VARCHAR NOT NULL, definition JSON NOT NULL, "
        "created_s DOUBLE PRECISION NOT NULL, changed_s DOUBLE PRECISION NOT NULL, PRIMARY KEY (name))"
    )
    connection.exec_driver_sql(
        "CREATE TABLE alias_changes (id INTEGER NOT NULL, name VARCHAR NOT NULL, "
        "at_s DOUBLE PRECISION NOT NULL, what VARCHAR NOT NULL, definition JSON, PRIMARY KEY (id))"
    )
    connection.exec_driver_sql("CREATE INDEX ix_alias_changes_name ON alias_changes (name)")
    connection.execute(insert(schema.revisions).values(topic=schema.Topic.ALIASES.value, value=0))


def _to_version_5(connection: Connection) -> None:
    for column in (
        "scopes JSON",
        "role VARCHAR",
        "expires_s DOUBLE PRECISION",
        "previous_digest {}",
        "previous_until_s DOUBLE PRECISION",
        "last_used_s DOUBLE PRECISION",
    ):
        binary = LargeBinary().compile(connection.dialect)
        connection.exec_driver_sql("ALTER TABLE api_keys ADD COLUMN " + column.format(binary))


def _to_version_6(connection: Connection) -> None:
    for column in ("rpm", "tpm", "concurrency"):
        connection.exec_driver_sql(f"ALTER TABLE api_keys ADD COLUMN {column} BIGINT")
    for column in ("gpu_s", "cost"):
        connection.exec_driver_sql(
            f"ALTER TABLE usage ADD COLUMN {column} DOUBLE PRECISION DEFAULT 0 NOT NULL"
        )
    connection.exec_driver_sql(
        "CREATE TABLE tenants (name VARCHAR NOT NULL, rpm BIGINT, tpm BIGINT, concurrency BIGINT, "
        "tokens_per_day BIGINT, tokens_per_month BIGINT, gpu_seconds_per_day DOUBLE PRECISION, "
        "gpu_seconds_per_month DOUBLE PRECISION, money_per_day DOUBLE PRECISION, "
        "money_per_month DOUBLE PRECISION, queue_share DOUBLE PRECISION, weight DOUBLE PRECISION, "
        "changed_s DOUBLE PRECISION NOT NULL, PRIMARY KEY (name))"
    )
    connection.exec_driver_sql(
        "CREATE TABLE prices (model VARCHAR NOT NULL, input DOUBLE PRECISION NOT NULL, "
        "output DOUBLE PRECISION NOT NULL, gpu_second DOUBLE PRECISION NOT NULL, "
        "changed_s DOUBLE PRECISION NOT NULL, PRIMARY KEY (model))"
    )
    connection.execute(insert(schema.revisions).values(topic=schema.Topic.LIMITS.value, value=0))


def _to_version_7(connection: Connection) -> None:
    connection.exec_driver_sql(
        "CREATE TABLE acts (number INTEGER NOT NULL, id VARCHAR NOT NULL, at_s DOUBLE PRECISION NOT NULL, "
        "kind VARCHAR NOT NULL, who VARCHAR NOT NULL, what JSON NOT NULL, PRIMARY KEY (number), UNIQUE (id))"
    )
    connection.exec_driver_sql("ALTER TABLE usage RENAME TO usage_before")
    connection.exec_driver_sql(
        "CREATE TABLE usage (day VARCHAR NOT NULL, key_id VARCHAR NOT NULL, tenant VARCHAR NOT NULL, "
        "model VARCHAR NOT NULL, deployment VARCHAR NOT NULL, requests BIGINT NOT NULL, "
        "prompt_tokens BIGINT NOT NULL, completion_tokens BIGINT NOT NULL, cached_tokens BIGINT NOT NULL, "
        "gpu_s DOUBLE PRECISION DEFAULT 0 NOT NULL, cost DOUBLE PRECISION DEFAULT 0 NOT NULL, "
        "PRIMARY KEY (day, key_id, tenant, model, deployment))"
    )
    connection.exec_driver_sql(
        "INSERT INTO usage SELECT day, key_id, tenant, model, '', requests, prompt_tokens, "
        "completion_tokens, cached_tokens, gpu_s, cost FROM usage_before"
    )
    connection.exec_driver_sql("DROP TABLE usage_before")


UPGRADES: dict[int, Callable[[Connection], None]] = {
    1: _to_version_2,
    2: _to_version_3,
    3: _to_version_4,
    4: _to_version_5,
    5: _to_version_6,
    6: _to_version_7,
}
"""From version n to n + 1: what changes tables that have rows. A new database is made at the newest."""


def create_schema(connection: Connection) -> None:
    """Make every table, for a new database."""
    schema.metadata.create_all(connection)
    connection.execute(
        insert(schema.revisions), [{"topic": topic.value, "value": 0} for topic in schema.Topic]
    )


def upgrade_schema(connection: Connection, version: int) -> None:
    """Bring a database of an older version to the newest."""
    while version < schema.SCHEMA_VERSION:
        UPGRADES[version](connection)
        version += 1
