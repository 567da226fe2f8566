"""The table of jobs that came from queues, which is among those of :mod:`gateway.storage.schema`."""

from sqlalchemy import BigInteger, Column, Double, Index, Integer, MetaData, String, Table


def queue_jobs_table(metadata: MetaData) -> Table:
    """Jobs that came from a queue, until their replies were sent (:mod:`gateway.domain.queues`);
    ``lease_until`` is on the clock of ``processes``; ``process`` is whose lease it is. Since version 17;
    ``process`` since version 19."""
    table = Table(
        "queue_jobs",
        metadata,
        Column("number", Integer, primary_key=True),
        Column("job_id", String, nullable=False, unique=True),
        Column("source", String, nullable=False),
        Column("message_id", String, nullable=False),
        Column("reply_to", String),
        Column("stream", Integer, nullable=False),
        *(Column(name, BigInteger, nullable=False) for name in ("sequence", "since", "start", "stop")),
        Column("is_sent", Integer, nullable=False),
        Column("next_s", Double, nullable=False),
        Column("attempts", Integer, nullable=False),
        Column("generation", BigInteger, nullable=False),
        Column("lease_until", Double),
        Column("failing_since_s", Double),
        Column("process", String),
    )
    Index("queue_jobs_of_source", table.c.source, table.c.next_s)
    return table
