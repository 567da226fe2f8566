"""Constraints on where a request may run: how they are written, and what meets two of them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.domain.residency import (
    WHERE_CHARS,
    WHERE_PAIRS,
    AllBut,
    BadResidency,
    EmptyResidency,
    Residency,
    are_label_values,
    label_values,
    labels_within,
    narrowed,
    read_where,
    where_of,
)

NAMES = ("region", "zone", "tier")
VALUES = ("eu", "us", "uk")
wheres = st.dictionaries(
    st.sampled_from(NAMES), st.sets(st.sampled_from(VALUES), min_size=1), min_size=1
).map(where_of)
labels = st.dictionaries(st.sampled_from(NAMES), st.sampled_from(VALUES))


def test_any_value_of_a_label_will_do_and_every_label_must_be_right() -> None:
    where = read_where("region=eu, region=uk ,tier=gold")
    assert where.allows({"region": "uk", "tier": "gold", "rack": "7"})
    assert not where.allows({"region": "uk"})
    assert not where.allows({"region": "us", "tier": "gold"})
    assert not where.allows({})


def test_equal_constraints_are_equal_however_they_are_written() -> None:
    one, other = read_where("zone=b,region=eu,zone=a"), read_where("region=eu,zone=a, zone=b,zone=b")
    assert (one, hash(one), str(one)) == (other, hash(other), str(other))
    assert str(one) == "region=eu,zone=a,zone=b"
    assert one.to_dict() == {"region": ["eu"], "zone": ["a", "b"]}


def test_an_empty_value_is_a_value_and_no_label_is_none() -> None:
    assert read_where("region=").allows({"region": ""})
    assert not read_where("region=").allows({})


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "'' is not NAME=VALUE"),
        ("region", "'region' is not NAME=VALUE"),
        ("region=eu,", "'' is not NAME=VALUE"),
        ("=eu", "is no label"),
        ("region=e u", "is no label"),
        ("region=eu;tier=x", "is no label"),
        ("régión=eu", "is no label"),
        ("a=" + "x" * 64, "is no label"),
        ("a=" + "x," * WHERE_CHARS, f"{WHERE_CHARS} are allowed"),
        (",".join(f"a={n}" for n in range(WHERE_PAIRS + 1)), f"{WHERE_PAIRS} are allowed"),
    ],
)
def test_what_is_no_constraint_is_told_with_a_reason(text: str, complaint: str) -> None:
    with pytest.raises(BadResidency, match=complaint):
        read_where(text)


def test_no_values_are_no_constraint() -> None:
    for values in ({}, {"region": ()}):
        with pytest.raises(BadResidency, match="write for example region=eu"):
            where_of(values)


@given(wheres)
def test_what_is_written_is_read_as_the_same(where: Residency) -> None:
    assert read_where(str(where)) == where == where_of(where.to_dict())


@given(wheres, wheres, labels)
def test_what_is_narrowed_allows_what_both_allow_and_nothing_else(
    policy: Residency, wish: Residency, there: dict[str, str]
) -> None:
    one, other = dict(policy.allowed), dict(wish.allowed)
    apart = [name for name in one if name in other and not one[name] & other[name]]
    if apart:
        with pytest.raises(EmptyResidency) as caught:
            narrowed(policy, wish)
        assert caught.value.label in apart
        assert not (policy.allows(there) and wish.allows(there))
    else:
        both = narrowed(policy, wish)
        assert both is not None
        assert both.allows(there) == (policy.allows(there) and wish.allows(there))


@given(wheres)
def test_who_says_nothing_changes_nothing(where: Residency) -> None:
    assert narrowed(where, None) == narrowed(None, where) == narrowed(where, where) == where
    assert narrowed(None, None) is None


def test_an_identity_may_have_several_values_of_a_label() -> None:
    assert label_values("eu,us") == {"eu", "us"}
    assert all(map(are_label_values, ("eu", "", "eu,us", "a.b,c/d")))
    assert not any(
        map(are_label_values, ("eu,", ",", "eu,eu", "eu, us", "a b", "x" * 64, ",".join("x" * 600)))
    )


@pytest.mark.parametrize(
    ("identity", "said", "exact", "found"),
    [
        ({"region": "eu"}, {}, False, {"region": "eu"}),
        ({"region": "eu"}, {"region": "us"}, False, {"region": "eu"}),
        ({"region": "eu"}, {}, True, {}),
        ({"region": "eu"}, {"region": "us", "rack": "7"}, True, {}),
        ({"region": "eu"}, {"region": "eu"}, True, {"region": "eu"}),
        ({"region": "eu,us"}, {}, False, {}),
        ({"region": "eu,us"}, {"region": "us"}, False, {"region": "us"}),
        ({"region": "eu,us"}, {"region": "us"}, True, {"region": "us"}),
        ({"region": "eu,us"}, {"region": "eu,us"}, True, {}),
        ({"region": "eu,us"}, {"region": "ca"}, True, {}),
    ],
)
def test_a_deployment_has_what_its_agents_identity_allows_of_what_is_said(
    identity: dict[str, str], said: dict[str, str], exact: bool, found: dict[str, str]
) -> None:
    assert labels_within(identity, said, exact=exact) == found


def test_all_but_some_values_allow_every_other_and_none() -> None:
    not_us = Residency((("region", AllBut({"us"})),))
    found = [not_us.allows(labels) for labels in ({}, {"region": "eu"}, {"region": "us"})]
    assert found == [True, True, False]
    assert (str(not_us), not_us.to_dict()) == ("region!=us", {})
    assert not_us == Residency((("region", AllBut({"us"})),))
    assert hash(not_us) == hash(Residency((("region", AllBut({"us"})),)))
    assert not_us != Residency((("region", frozenset({"us"})),))


def test_all_but_some_values_narrow_either_way() -> None:
    not_us, not_ap = (Residency((("region", AllBut({name})),)) for name in ("us", "ap"))
    both = read_where("region=us,region=eu,tier=gold")
    assert narrowed(both, not_us) == narrowed(not_us, both) == read_where("region=eu,tier=gold")
    assert narrowed(not_us, not_ap) == Residency((("region", AllBut({"us", "ap"})),))
    with pytest.raises(EmptyResidency):
        narrowed(read_where("region=us"), not_us)
