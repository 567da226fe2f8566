"""The tables of scaling's history and forecasts (:mod:`gateway.storage.scaling_history`)."""

from sqlalchemy import JSON, Column, Double, Integer, LargeBinary, MetaData, String, Table


def scaling_tables(metadata: MetaData) -> tuple[Table, Table, Table]:
    """What was asked of each model on each class of device, by day since 1970, and the latest forecast of
    each of these, since version 21. How loads went within their steps, of the latest days, since version
    22."""
    loads = Table(
        "scaling_loads",
        metadata,
        *(Column(name, String, primary_key=True) for name in ("model", "device")),
        Column("day", Integer, primary_key=True, autoincrement=False),
        Column("loads", LargeBinary, nullable=False),
    )
    forecasts = Table(
        "scaling_forecasts",
        metadata,
        *(Column(name, String, primary_key=True) for name in ("model", "device")),
        Column("made_s", Double, nullable=False),
        Column("said", JSON, nullable=False),
    )
    bursts = Table(
        "scaling_bursts",
        metadata,
        *(Column(name, String, primary_key=True) for name in ("model", "device")),
        Column("day", Integer, primary_key=True, autoincrement=False),
        Column("bursts", LargeBinary, nullable=False),
    )
    return loads, forecasts, bursts
