"""How values are written on the command line and shown in tables."""

import pytest

from gateway.api.admin.resources.text import duration_s


@pytest.mark.parametrize(
    ("text", "seconds"), [("90s", 90), ("30m", 1800), ("24h", 86_400), ("7d", 604_800), ("2W", 1_209_600)]
)
def test_durations_are_read(text: str, seconds: float) -> None:
    assert duration_s(text) == seconds
