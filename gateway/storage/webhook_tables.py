"""The tables of webhooks, which are among those of :mod:`gateway.storage.schema`."""

from sqlalchemy import BigInteger, Column, Double, Index, Integer, MetaData, String, Table


def webhook_deliveries_table(metadata: MetaData) -> Table:
    """Events on their way to those who want to hear of them (:mod:`gateway.domain.webhooks`); ``lease_until``
    is on the clock of ``processes``. Since version 14."""
    table = Table(
        "webhook_deliveries",
        metadata,
        Column("number", Integer, primary_key=True),
        Column("id", String, nullable=False, unique=True),
        *(
            Column(name, String, nullable=False)
            for name in ("tenant", "object_id", "type", "url", "host", "state")
        ),
        *(Column(name, Double, nullable=False) for name in ("created_s", "next_s")),
        Column("attempts", Integer, nullable=False),
        Column("generation", BigInteger, nullable=False),
        *(Column(name, Double) for name in ("lease_until", "attempted_s", "ended_s")),
        Column("status", Integer),
        Column("error", String),
    )
    Index("webhook_deliveries_due", table.c.next_s, info={"where": table.c.state == "waiting"})
    Index("webhook_deliveries_ended", table.c.ended_s, info={"where": table.c.ended_s.is_not(None)})
    Index("webhook_deliveries_of_object", table.c.object_id)
    return table


def webhook_secrets_table(metadata: MetaData) -> Table:
    """What signs the webhooks of a tenant, and until its time is over what did before the last rotation; both
    encrypted. Since version 14."""
    return Table(
        "webhook_secrets",
        metadata,
        Column("tenant", String, primary_key=True),
        Column("secret", String, nullable=False),
        Column("created_s", Double, nullable=False),
        Column("rotated_s", Double),
        Column("previous", String),
        Column("previous_until_s", Double),
    )
