"""Records for tests, and the facts in them."""

from typing import Any

from msgspec.structs import replace

from gateway.dispatch.decisions.records import RecordSettings, RequestRecords
from gateway.domain.request import Tier
from gateway.observability.audit import RequestFacts


def facts(number: int = 1, **more: Any) -> RequestFacts:
    """Of a request that was answered within a second."""
    usual = RequestFacts(
        1000.0 + number,
        f"r{number}",
        200,
        None,
        "key_1",
        "tenant",
        "chat",
        "m",
        None,
        "",
        "v1",
        Tier.STANDARD,
        ["a/d"],
        None,
        0.0,
        0.5,
        1.0,
        None,
        0.0,
        None,
    )
    return replace(usual, **more)


def records(recent: int = 3, slow: int = 2, failed: int = 2, slow_s: float = 5.0) -> RequestRecords:
    """A book in which nothing is live."""
    return RequestRecords(RecordSettings(recent, slow, failed, slow_s), list, lambda: 0.0, lambda: 1000.0)
