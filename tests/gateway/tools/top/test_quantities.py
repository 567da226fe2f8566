"""Numbers in narrow columns."""

import pytest

from gateway.tools.top.quantities import bar, count, gibibytes, percent, seconds

DURATIONS = {
    **{0.00324: "3.2 ms", 0.85: "850 ms", 0.9996: "1.00 s", 1.25: "1.25 s", 42: "42.0 s", 187: "3m07s"},
    **{3599.7: "1h00m", 7500: "2h05m", 864000: "10d"},
}
COUNTS = {
    **{0: "0", 0.42: "0.4", 9.5: "9.5", 120.4: "120", 4520: "4520", 9999.6: "10.0k", 12345: "12.3k"},
    **{123456: "123k", 1234567: "1.2M", 2e12: "2000G"},
}


@pytest.mark.parametrize(("value", "shown"), DURATIONS.items())
def test_durations_have_seven_characters_at_most(value: float, shown: str) -> None:
    assert seconds(value) == shown


@pytest.mark.parametrize(("value", "shown"), COUNTS.items())
def test_counts_have_five_characters_at_most(value: float, shown: str) -> None:
    assert count(value) == shown


def test_bars_and_shares() -> None:
    assert (percent(0.456), gibibytes(1.5 * 1024**3), gibibytes(80 * 1024**3)) == ("46%", "1.5", "80")
    assert [bar(each, 4) for each in (0, 0.5, 0.53, 1, 2, None)] == ["", "██", "██▏", "████", "████", ""]
