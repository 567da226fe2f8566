"""Settings of regions that do not fit are told; what is not set changes nothing."""

from math import inf

import pytest
from pydantic import ValidationError

from gateway.runtime.config.regions import RegionsTable


def test_nothing_is_on_unless_it_is_set() -> None:
    assert not RegionsTable().enabled


def test_prices_are_seconds_or_never_by_region_or_pair() -> None:
    given = {"home": "eu", "prices": {"us": 2, "eu > ap": "inf", "us>eu": 3.5}}
    assert RegionsTable.model_validate(given).prices == {"us": 2.0, "eu>ap": inf, "us>eu": 3.5}


def test_what_is_never_is_shown_as_it_is_written() -> None:
    table = RegionsTable.model_validate({"prices": {"us": inf, "ap": 2.0}})
    shown = table.model_dump(mode="json")
    assert shown["prices"] == {"us": "inf", "ap": 2.0}
    assert RegionsTable.model_validate(shown) == table
    assert table.model_dump()["prices"]["us"] == inf


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"label": "a b"}, "no label's name"),
        ({"home": "a b"}, "is no region"),
        ({"prices": {"us": -1}}, "greater than or equal to 0"),
        ({"prices": {"us": "nan"}}, "greater than or equal to 0|no number"),
        ({"prices": {"a>b>c": 1}}, "neither a region nor FROM>TO"),
        ({"prices": {"eu>us": 1}}, "regions.home is not set"),
        ({"home": "eu", "prices": {"eu": 1}}, "own region"),
        ({"home": "eu", "prices": {"eu>eu": 1}}, "own region"),
        ({"home": "eu", "pilot": ["eu"]}, "own region"),
        ({"price_s": inf}, "less than or equal to 86400"),
        ({"shifts": [{"to": "us"}]}, "share"),
        ({"shifts": [{"to": "us", "share": 1.5}]}, "less than or equal to 1"),
        ({"shifts": [{"to": "us", "share": 0.1}], "prices": {"us": inf}}, "costs infinitely"),
        ({"failback_s": 100, "failback_most_s": 10}, "more than regions.failback_most_s"),
        ({"ramp_s": 0}, "greater than 0"),
        ({"nearest": True}, "Extra inputs"),
    ],
)
def test_what_does_not_fit_is_told(given: dict[str, object], said: str) -> None:
    with pytest.raises(ValidationError, match=said):
        RegionsTable.model_validate(given)


def test_traffic_is_moved_where_only_others_pay_infinitely() -> None:
    """The price of a pair counts before that of its second region."""
    shifts = [{"to": "us", "share": 0.1}]
    RegionsTable.model_validate({"home": "eu", "shifts": shifts, "prices": {"us": inf, "eu>us": 5}})
    with pytest.raises(ValidationError, match="costs infinitely"):
        RegionsTable.model_validate({"home": "eu", "shifts": shifts, "prices": {"us": 5, "eu>us": inf}})
