"""What waits at a gateway as DEMAND says it (PROTOCOL §4.7)."""

from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.protocol import limits
from shared.protocol.demand import Demand, decode_demand, encode_demand
from shared.protocol.errors import FrameMalformed

DEMANDS = st.builds(
    Demand,
    st.integers(0, 1_000_000),
    st.integers(0, 1_000_000),
    st.floats(0, 1e9),
    st.floats(0, 1e6),
)


@given(st.dictionaries(st.text(max_size=40), DEMANDS, max_size=20))
def test_what_is_said_is_read(demands: dict[str, Demand]) -> None:
    assert decode_demand(encode_demand(demands)) == demands


def test_a_number_stands_for_what_waits() -> None:
    assert decode_demand(b'{"demo":3}') == {"demo": Demand(waiting=3)}


def test_members_are_optional_and_later_ones_ignored() -> None:
    assert decode_demand(b'{"demo":{"later":[]}}') == {"demo": Demand(0, 0, 0.0, 1.0)}


@pytest.mark.parametrize(
    "said",
    [
        {"waiting": -1},
        {"waiting": 1.5},
        {"waiting": 2_000_000},
        {"realtime": "1"},
        {"oldest_wait_s": -0.1},
        {"weight": -1.0},
        {"weight": 1e9},
        [],
        True,
        None,
    ],
)
def test_what_is_out_of_bounds_is_malformed(said: Any) -> None:
    with pytest.raises(FrameMalformed, match="demand"):
        decode_demand(orjson.dumps({"demo": said}))


def test_too_many_models_are_malformed() -> None:
    with pytest.raises(FrameMalformed):
        decode_demand(orjson.dumps({f"m{n}": 1 for n in range(limits.DEPLOYMENTS + 1)}))


def test_where_there_is_no_room_those_with_the_fewest_waiting_are_left_out() -> None:
    demands = {f"{'n' * 250}{n:04}": Demand(waiting=n) for n in range(1, 401)}
    payload = encode_demand(demands)
    said = decode_demand(payload)
    assert len(payload) <= limits.CONTROL_PAYLOAD_BYTES
    assert 100 < len(said) <= limits.DEPLOYMENTS
    assert min(each.waiting for each in said.values()) == 401 - len(said)
