"""Times read as :mod:`datetime` writes them."""

from datetime import UTC, datetime, timedelta

from hypothesis import example, given
from hypothesis import strategies as st

from shared.process.utc_text import to_microseconds, to_milliseconds

LAST_S = 4_000_000_000


@given(st.integers(0, LAST_S * 10**6))
@example(1_700_000_000 * 10**6)
def test_microseconds_are_those_of_datetime(microseconds: int) -> None:
    moment = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=microseconds)
    assert to_microseconds(microseconds * 1000 + 999) == moment.isoformat().removesuffix("+00:00") + "Z"


@given(st.floats(0.0, LAST_S))
@example(1_700_000_000.0)
@example(1_700_000_000.9999999)
@example(1_700_000_000.9996)
def test_milliseconds_are_those_of_datetime(time_s: float) -> None:
    moment = datetime.fromtimestamp(time_s, UTC)
    assert to_milliseconds(time_s) == moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
