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

from gateway.storage.batch_tables import batches_table, upload_tables
from gateway.storage.queue_tables import queue_jobs_table
from gateway.storage.scaling_tables import scaling_tables
from gateway.storage.webhook_tables import webhook_deliveries_table, webhook_secrets_table

SCHEMA_VERSION = 22

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
    Column("held_s", Double),
    Column("held_by", String),
)
"""One row a key that ever joined: a revoked one stays, so that its key can never come back. Since version 11:
``held_s``, since when an operator keeps new work from the agent (NULL: it gets work), and ``held_by``, who
that was."""
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

usage_batches = Table(
    "usage_batches",
    metadata,
    Column("process", String, primary_key=True),
    Column("batch", BigInteger, primary_key=True),
    Column("added_s", Double, nullable=False),
)
"""The latest amounts that each process has added to ``usage``: who adds one of them again changes nothing.
Since version 8."""

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
    Column("claimed_by", String),
    Column("claimed_s", Double),
)
"""Administrative acts that the audit log has not taken up yet. Since version 7.

Since version 9: ``claimed_by``, the audit log of several that is to take the act up (NULL: none yet), and
since when."""

processes = Table(
    "processes",
    metadata,
    Column("id", String, primary_key=True),
    Column("incarnation", BigInteger, nullable=False),
    Column("url", String),
    Column("host", String, nullable=False),
    Column("version", String, nullable=False),
    Column("started", Double, nullable=False),
    Column("heard", Double, nullable=False),
    Column("wanted", String),
    Column("address", String),
    Column("knowledge", String),
)
"""The gateway processes that use this store; ``heard`` is when the process wrote its row last, on the clock
of :meth:`gateway.storage.database.Database.interval_s`. Since version 9; ``wanted``, models that requests
wait for there (:mod:`gateway.cluster.placement_demands`; NULL: none), since version 10. Since version 11:
``address``, the URL at which the other processes ask this one (NULL: ``url``), and ``knowledge``, what the
process has learnt and the others may use (NULL: nothing)."""

leases = Table(
    "leases",
    metadata,
    Column("name", String, primary_key=True),
    Column("owner", String),
    Column("incarnation", BigInteger, nullable=False),
    Column("epoch", BigInteger, nullable=False),
    Column("until", Double, nullable=False),
)
"""What only one process may do, who may, and until when on the clock of ``processes``. ``owner`` is NULL when
it was given back. Since version 9."""

audit_heads = Table(
    "audit_heads",
    metadata,
    Column("chain", String, primary_key=True),
    Column("seq", BigInteger, nullable=False),
    Column("hash", String, nullable=False),
    Column("at_s", Double, nullable=False),
    Column("host", String, nullable=False),
)
"""The last line of each audit log at the time ``at_s``: its number and its hash, in hexadecimal. A log of
which this line is gone or another one was cut short or written anew. Since version 11."""

jobs = Table(
    "jobs",
    metadata,
    Column("number", Integer, primary_key=True),
    Column("id", String, nullable=False, unique=True),
    *(
        Column(name, String, nullable=False)
        for name in ("tenant", "key_id", "model", "path", "tier", "state")
    ),
    Column("headers", JSON, nullable=False),
    Column("body", String, nullable=False),
    Column("body_start", BigInteger, nullable=False),
    Column("body_stop", BigInteger),
    *(Column(name, String) for name in ("group_id", "custom_id", "webhook")),
    *(Column(name, Double) for name in ("deadline_s", "predicted_s", "predicted_cost")),
    *(Column(name, Double, nullable=False) for name in ("not_before_s", "created_s")),
    *(Column(name, Integer, nullable=False) for name in ("attempts", "cancelling")),
    Column("process", String),
    Column("incarnation", BigInteger),
    Column("generation", BigInteger, nullable=False),
    *(Column(name, Double) for name in ("lease_until", "progress")),
    Column("progress_text", String),
    *(Column(name, Double) for name in ("started_s", "finished_s", "kept_until_s")),
    Column("status", Integer),
    Column("result_headers", JSON(none_as_null=True)),
    Column("result", String),
    Column("result_bytes", BigInteger),
    Column("error", JSON(none_as_null=True)),
    Column("metadata", JSON(none_as_null=True)),
    Column("previews", Integer),
)
"""Long work (:mod:`gateway.domain.jobs`); ``lease_until`` is on the clock of ``processes``. Since version
12; ``metadata`` since version 15, ``previews`` since version 18."""
Index(
    "jobs_queued",
    *(jobs.c[name] for name in ("model", "tenant", "number")),
    info={"where": jobs.c.state == "queued"},
)
Index("jobs_running", jobs.c.lease_until, info={"where": jobs.c.state == "running"})
Index("jobs_deadline", jobs.c.deadline_s, info={"where": jobs.c.finished_s.is_(None)})
Index("jobs_kept", jobs.c.kept_until_s, info={"where": jobs.c.finished_s.is_not(None)})
Index("jobs_of_tenant", jobs.c.tenant, jobs.c.number)
Index("jobs_of_group", jobs.c.group_id, jobs.c.number, info={"where": jobs.c.group_id.is_not(None)})
Index("jobs_states_of_group", jobs.c.group_id, jobs.c.state, info={"where": jobs.c.group_id.is_not(None)})
Index(
    "jobs_unfinished_of_group",
    jobs.c.group_id,
    info={"where": jobs.c.group_id.is_not(None) & jobs.c.finished_s.is_(None)},
)

job_queues = Table(
    "job_queues",
    metadata,
    *(Column(name, String, primary_key=True) for name in ("model", "tenant")),
    *(Column(name, BigInteger, nullable=False) for name in ("queued", "running")),
    Column("virtual", Double, nullable=False),
)
"""How many jobs of each model and tenant wait and run, and the virtual time by which claims are fair. Since
version 12."""

job_previews = Table(
    "job_previews",
    metadata,
    Column("job_id", String, primary_key=True),
    Column("type", String, nullable=False),
    Column("data", LargeBinary, nullable=False),
)
"""What there is so far of the answers of jobs that run. Since version 18."""

submissions = Table(
    "submissions",
    metadata,
    *(Column(name, String, primary_key=True) for name in ("tenant", "key")),
    Column("fingerprint", LargeBinary, nullable=False),
    Column("made", JSON, nullable=False),
    Column("at_s", Double, nullable=False),
)
"""What requests with an idempotency key have made, and of which body. Since version 12."""

files = Table(
    "files",
    metadata,
    Column("number", Integer, primary_key=True),
    Column("id", String, nullable=False, unique=True),
    *(Column(name, String, nullable=False) for name in ("tenant", "key_id", "filename", "purpose", "state")),
    Column("size_bytes", BigInteger, nullable=False),
    Column("sha256", String),
    Column("created_s", Double, nullable=False),
    Column("expires_s", Double),
)
"""Files of tenants (:mod:`gateway.domain.files`); their bytes are objects. Since version 13."""
Index("files_of_tenant", files.c.tenant, files.c.number)
Index("files_expiring", files.c.expires_s, info={"where": files.c.expires_s.is_not(None)})
Index("files_unfinished", files.c.created_s, info={"where": files.c.state != "ready"})

webhook_deliveries = webhook_deliveries_table(metadata)
webhook_secrets = webhook_secrets_table(metadata)
uploads, upload_parts = upload_tables(metadata)
batches = batches_table(metadata)
queue_jobs = queue_jobs_table(metadata)
scaling_loads, scaling_forecasts, scaling_bursts = scaling_tables(metadata)

OF_ONE_STORE = (processes, leases, audit_heads)
"""Tables that say nothing in another store: they are not copied there. Audit logs that go on with another
store have their heads noted there anew."""


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
