"""What may be asked of a list, and what is refused."""

import pytest

from gateway.api.openai.list_queries import read_limit, read_order
from gateway.domain.errors import BadRequest


@pytest.mark.parametrize(("given", "limit"), [({}, 20), ({"limit": "1"}, 1), ({"limit": "0100"}, 100)])
def test_a_limit_is_read(given: dict[str, str], limit: int) -> None:
    assert read_limit(given, 20, 100) == limit


@pytest.mark.parametrize("given", ["", "0", "101", "-1", "1.5", "x", "²", "9" * 5000])
def test_any_other_limit_is_refused(given: str) -> None:
    with pytest.raises(BadRequest, match="'limit' must be an integer from 1 to 100") as refused:
        read_limit({"limit": given}, 20, 100)
    assert refused.value.param == "limit"


def test_an_order_is_one_of_two() -> None:
    assert [read_order({}), read_order({"order": "asc"})] == ["desc", "asc"]
    with pytest.raises(BadRequest, match="asc or desc"):
        read_order({"order": "up"})
