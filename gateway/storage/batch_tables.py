"""The tables of files that come in parts and of batches (:mod:`gateway.storage.schema`)."""

from sqlalchemy import JSON, BigInteger, Column, Double, Index, Integer, MetaData, String, Table

from gateway.domain.batches import ENDED_BATCHES


def upload_tables(metadata: MetaData) -> tuple[Table, Table]:
    """Files that come in parts (:mod:`gateway.domain.uploads`), and the parts. Since version 16."""
    uploads = Table(
        "uploads",
        metadata,
        Column("number", Integer, primary_key=True),
        Column("id", String, nullable=False, unique=True),
        *(
            Column(name, String, nullable=False)
            for name in ("tenant", "key_id", "filename", "mime_type", "purpose", "state")
        ),
        Column("size_bytes", BigInteger, nullable=False),
        *(Column(name, Double, nullable=False) for name in ("created_s", "expires_s")),
        Column("file_kept_s", Double),
        Column("file_id", String),
    )
    Index("uploads_expiring", uploads.c.expires_s)

    upload_parts = Table(
        "upload_parts",
        metadata,
        Column("id", String, primary_key=True),
        Column("upload_id", String, nullable=False, index=True),
        Column("state", String, nullable=False),
        Column("size_bytes", BigInteger, nullable=False),
        Column("created_s", Double, nullable=False),
    )
    return uploads, upload_parts


def batches_table(metadata: MetaData) -> Table:
    """Batches (:mod:`gateway.domain.batches`); ``lease_until`` is on the clock of ``processes``. Since
    version 16."""
    batches = Table(
        "batches",
        metadata,
        Column("number", Integer, primary_key=True),
        Column("id", String, nullable=False, unique=True),
        *(
            Column(name, String, nullable=False)
            for name in ("tenant", "key_id", "state", "endpoint", "completion_window", "input_file_id")
        ),
        Column("metadata", JSON(none_as_null=True)),
        Column("principal", JSON(none_as_null=True)),
        Column("output_kept_s", Double),
        *(Column(name, String) for name in ("webhook", "model")),
        Column("errors", JSON(none_as_null=True)),
        Column("usage", JSON(none_as_null=True)),
        *(Column(name, BigInteger, nullable=False) for name in ("total", "submitted", "read_bytes")),
        *(Column(name, BigInteger) for name in ("completed", "failed")),
        *(Column(name, String) for name in ("output_file_id", "error_file_id")),
        *(Column(name, Double, nullable=False) for name in ("created_s", "expires_s")),
        *(
            Column(name, Double)
            for name in (
                "in_progress_s",
                "finalizing_s",
                "completed_s",
                "failed_s",
                "expired_s",
                "cancelling_s",
                "cancelled_s",
            )
        ),
        Column("process", String),
        Column("generation", BigInteger, nullable=False),
        Column("lease_until", Double),
    )
    Index("batches_of_tenant", batches.c.tenant, batches.c.number)
    ended = sorted(state.value for state in ENDED_BATCHES)
    Index("batches_open", batches.c.input_file_id, info={"where": batches.c.state.not_in(ended)})
    return batches
