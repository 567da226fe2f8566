"""Deltas make of one state exactly the next."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from gateway.api.admin.live.patch import apply_patch, changes_between, merge_patch, without_none

NAMES = st.sampled_from("abcd")
VALUES = (
    st.integers(0, 3) | st.booleans() | st.text("xy", max_size=2) | st.lists(st.integers(0, 2), max_size=2)
)
STATES: st.SearchStrategy[dict[str, Any]] = st.recursive(
    st.dictionaries(NAMES, VALUES, max_size=4),
    lambda inner: st.dictionaries(NAMES, VALUES | inner, max_size=4),
    max_leaves=12,
)


@given(before=STATES, after=STATES)
def test_a_patch_makes_the_one_state_of_the_other(before: dict[str, Any], after: dict[str, Any]) -> None:
    patch = merge_patch(before, after)
    assert apply_patch(before, patch) == after
    assert bool(patch) == (before != after)


def test_what_is_the_same_object_is_not_looked_into() -> None:
    class Untouchable(dict[str, Any]):
        def items(self) -> Any:
            raise AssertionError("looked into")

    same = Untouchable(a=1)
    assert merge_patch({"x": same, "y": 1}, {"x": same, "y": 2}) == {"y": 2}


def test_changes_of_status_are_told_with_what_was_before() -> None:
    before = {
        "agents": {"a": {"status": "ready"}, "gone": {"status": "ready"}, "same": {"status": "ready"}},
        "deployments": {"a/d": {"status": "loaded", "slots": 1}},
    }
    after = {
        "agents": {
            "a": {"status": "failed", "reason": "no GPU"},
            "new": {"status": "ready"},
            "same": {"status": "ready"},
        },
        "deployments": {"a/d": {"status": "loaded", "slots": 2}},
    }
    found = {
        each["name"]: (each["from"], each["to"], each.get("why"))
        for each in changes_between(before, after, 1.0)
    }
    assert found == {
        "a": ("ready", "failed", "no GPU"),
        "new": (None, "ready", None),
        "gone": ("ready", None, None),
    }
    assert without_none({"a": None, "b": 0}) == {"b": 0}
