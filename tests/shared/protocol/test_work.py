"""How much work a request for pictures or videos is."""

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.protocol.work import UNITS_MAX, WORK_INPUTS, WorkScale, units_of_nodes, usable_scale

SCALE = WorkScale(10.0, {"steps": 20.0, "width": 1024.0, "batch": 1.0})


@pytest.mark.parametrize(
    ("inputs", "units"),
    [
        ({}, 10.0),
        ({"steps": 40}, 20.0),
        ({"steps": 10, "width": 2048.0, "batch": 3}, 30.0),
        ({"steps": 0, "width": -5, "prompt": 9}, 10.0),
        ({"batch": 1e30}, UNITS_MAX),
    ],
)
def test_work_is_proportional_to_each_input(inputs: dict[str, float], units: float) -> None:
    assert SCALE.units_of(inputs) == pytest.approx(units)


def node(**inputs: Any) -> dict[str, Any]:
    return {"class_type": "X", "inputs": inputs}


@pytest.mark.parametrize(
    ("nodes", "units"),
    [
        ([node(width=1000, height=1000, batch_size=2), node(steps=20)], 40.0),
        ([node(width=500, height=1000, length=48), node(steps=10), node(steps=5)], 360.0),
        ([node(width=500, height=500), node(width=1000, height=2000)], 2.0),
        ([node(steps=25, denoise=0.5)], 25.0),
        ([node(width=["4", 0], height=1000), node(steps=["5", 1])], None),
        ([node(steps=True), node(length=48), "no node", {"inputs": 3}, {}], None),
        ([], None),
    ],
)
def test_nodes_say_how_much_work_they_are(nodes: list[Any], units: float | None) -> None:
    assert units_of_nodes(nodes) == (None if units is None else pytest.approx(units))


def test_what_a_state_says_is_taken_as_far_as_it_can_be() -> None:
    said = {"units": 4, "inputs": {"steps": 20, "a": -1, "b": "x", "c": True, "": 2, "x" * 65: 2, "d": 2}}
    assert usable_scale(said) == WorkScale(4.0, {"steps": 20.0, "d": 2.0})
    many = usable_scale({"units": 1, "inputs": {f"i{number}": 1 for number in range(100)}})
    assert many is not None
    assert len(many.inputs) == WORK_INPUTS
    useless: list[Any] = [None, [], {}, {"units": 0}, {"units": "4"}, {"inputs": {"steps": 20}}]
    for nothing in useless:
        assert usable_scale(nothing) is None


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["units", "inputs", "steps", "width", "height", "length"]), inner)
    ),
    max_leaves=12,
)


@given(json_values)
def test_whatever_is_said_work_is_positive_and_finite(value: Any) -> None:
    scale = usable_scale(value)
    units = units_of_nodes(value if isinstance(value, list) else [value])
    for found in (None if scale is None else scale.units_of({"steps": 1e9, "width": 1e-9}), units):
        assert found is None or (found >= 0 and math.isfinite(found))
