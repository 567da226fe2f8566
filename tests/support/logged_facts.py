"""Facts of events for the log in tests."""

from datetime import datetime
from typing import Any

from msgspec import Struct


class LoggedFacts(Struct, omit_defaults=True):
    """For :class:`shared.process.logs.EventLog`."""

    id: Any = None
    path: str | None = None
    place: Any = None
    key: str | None = None
    text: str | None = None
    event: str | None = None
    logger: str | None = None
    process: str | None = None
    level: str | None = None
    timestamp: datetime | None = None
