"""The tables of the durable state, in SQL that SQLite and PostgreSQL both speak.

Times are seconds since 1970. Every table whose rows processes keep in memory has a ``revision``: the
value that its topic's counter had when the row last changed, so that a reader fetches only what is new.

The condition of a partial index stands in its ``info`` under ``where``: SQLAlchemy has it only under the name
of each database, so whoever makes the tables puts it there.
"""

from enum import StrEnum

from sqlalchemy import (
    JSON,
    BigInteger,
    Column,
    Connection,
    Double,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    select,
    text,
    update,
)

SCHEMA_VERSION = 7

metadata = MetaData()

facts = Table(
    "facts",
    metadata,
    Column("name", String, primary_key=True),
    Column("value", String, nullable=False),
)
"""Single facts about the whole, such as the fingerprint of the gateway's key."""

revisions = Table(
    "revisions",
    metadata,
    Column("topic", String, primary_key=True),
    Column("value", BigInteger, nullable=False),
)
"""One counter a topic; whoever changes a row of the topic moves it in the same transaction."""

tokens = Table(
    "join_tokens",
    metadata,
    Column("id", String, primary_key=True),
    Column("verifier", LargeBinary, nullable=False),
    Column("created_s", Double, nullable=False),
    Column("expires_s", Double, nullable=False),
    Column("uses_allowed", Integer, nullable=False),
    Column("uses", Integer, nullable=False),
    Column("models", JSON, nullable=False),
    Column("labels", JSON, nullable=False),
    Column("revoked_s", Double),
)

keys = Table(
    "api_keys",
    metadata,
    Column("id", String, primary_key=True),
    Column("name", String, nullable=False),
    Column("tenant", String, nullable=False),
    Column("digest", LargeBinary, nullable=False, unique=True),
    Column("hint", String, nullable=False),
    Column("created_s", Double, nullable=False),
    Column("revoked_s", Double),
    Column("revision", BigInteger, nullable=False, index=True),
    Column("residency", JSON(none_as_null=True)),
    Column("scopes", JSON(none_as_null=True)),
    Column("role", String),
    Column("expires_s", Double),
    Column("previous_digest", LargeBinary),
    Column("previous_until_s", Double),
    Column("last_used_s", Double),
    *(Column(name, BigInteger) for name in ("rpm", "tpm", "concurrency")),
)
"""``residency`` (since version 3): the values a deployment's labels may have, by label; NULL: any.

Since version 5: ``scopes`` (what may be asked for, by kind; NULL: anything), ``role`` on the admin API,
``expires_s``, the secret before the last rotation with the end of its time, and ``last_used_s``. Since
version 6: limits; NULL: none.
"""
Index("api_keys_active_name", keys.c.name, unique=True, info={"where": keys.c.revoked_s.is_(None)})

agents = Table(
    "agents",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("name", String, nullable=False),
    Column("public_key", LargeBinary, nullable=False, unique=True),
    Column("models", JSON, nullable=False),
    Column("labels", JSON, nullable=False),
    Column("token_id", String, nullable=False),
    Column("joined_s", Double, nullable=False),
    Column("last_seen_s", Double),
    Column("revoked_s", Double),
    Column("revoked_reason", String, nullable=False),
    Column("revision", BigInteger, nullable=False, index=True),
)
"""One row a key that ever joined: a revoked one stays, so that its key can never come back."""
Index("agents_active_name", agents.c.name, unique=True, info={"where": agents.c.revoked_s.is_(None)})

certificates = Table(
    "certificates",
    metadata,
    Column("serial", String, primary_key=True),
    Column("agent_id", Integer, ForeignKey("agents.id"), nullable=False, index=True),
    Column("issued_s", Double, nullable=False),
    Column("expires_s", Double, nullable=False),
)
"""Serials are hex text: they have 159 bits."""

models = Table(
    "models",
    metadata,
    Column("name", String, primary_key=True),
    Column("first_s", Double, nullable=False),
    Column("last_s", Double, nullable=False),
)
"""Names once served. Since version 2."""

COUNTS = ("requests", "prompt_tokens", "completion_tokens", "cached_tokens")

usage = Table(
    "usage",
    metadata,
    *(Column(name, String, primary_key=True) for name in ("day", "key_id", "tenant", "model", "deployment")),
    *(Column(name, BigInteger, nullable=False) for name in COUNTS),
    *(Column(name, Double, nullable=False, server_default=text("0")) for name in ("gpu_s", "cost")),
)
"""Sums of a day (UTC, ``2026-11-21``). Since version 2; ``gpu_s`` and ``cost``, in money, since version 6;
``deployment`` (``agent/id``; empty where it is not known, and in what is older) since version 7."""

tenants = Table(
    "tenants",
    metadata,
    Column("name", String, primary_key=True),
    *(Column(name, BigInteger) for name in ("rpm", "tpm", "concurrency")),
    *(Column(name, BigInteger) for name in ("tokens_per_day", "tokens_per_month")),
    *(Column(name, Double) for name in ("gpu_seconds_per_day", "gpu_seconds_per_month")),
    *(Column(name, Double) for name in ("money_per_day", "money_per_month", "queue_share", "weight")),
    Column("changed_s", Double, nullable=False),
)
"""Tenants' limits; NULL: none. Read whole when the revision of their topic has moved. Since version 6."""

prices = Table(
    "prices",
    metadata,
    Column("model", String, primary_key=True),
    *(Column(name, Double, nullable=False) for name in ("input", "output", "gpu_second", "changed_s")),
)
"""The prices of a million tokens and of a GPU-second. Read whole with the tenants. Since version 6."""

aliases = Table(
    "aliases",
    metadata,
    Column("name", String, primary_key=True),
    Column("definition", JSON, nullable=False),
    Column("created_s", Double, nullable=False),
    Column("changed_s", Double, nullable=False),
)
"""What names stand for. Read whole when its topic's revision has moved. Since version 4."""

alias_changes = Table(
    "alias_changes",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("name", String, nullable=False, index=True),
    Column("at_s", Double, nullable=False),
    Column("what", String, nullable=False),
    Column("definition", JSON(none_as_null=True)),
)
"""The latest changes of each alias and what it was after them; NULL: no more. Since version 4."""


acts = Table(
    "acts",
    metadata,
    Column("number", Integer, primary_key=True),
    Column("id", String, nullable=False, unique=True),
    Column("at_s", Double, nullable=False),
    Column("kind", String, nullable=False),
    Column("who", String, nullable=False),
    Column("what", JSON, nullable=False),
)
"""Administrative acts that the audit log has not taken up yet. Since version 7."""


class Topic(StrEnum):
    """What has a counter in ``revisions``."""

    KEYS = "keys"
    AGENTS = "agents"
    ALIASES = "aliases"
    LIMITS = "limits"


def next_revision(connection: Connection, topic: Topic) -> int:
    """Move the topic's counter, and hold it until the transaction ends; the new value.

    Transactions that change a topic thus commit in the order of their revisions.
    """
    counter = revisions.c.topic == topic.value
    connection.execute(update(revisions).where(counter).values(value=revisions.c.value + 1))
    return int(connection.execute(select(revisions.c.value).where(counter)).scalar_one())


def read_revision(connection: Connection, topic: Topic) -> int:
    """The topic's counter."""
    return int(
        connection.execute(select(revisions.c.value).where(revisions.c.topic == topic.value)).scalar_one()
    )
