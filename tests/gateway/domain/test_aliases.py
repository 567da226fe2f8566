"""What a name may stand for, and how people write it."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.domain.aliases import (
    TARGETS,
    Alias,
    AliasMirror,
    AliasTarget,
    BadAlias,
    alias_of,
    check_alias,
    check_together,
    read_target,
    read_targets,
)

NAMES = st.text(st.characters(codec="utf-8", categories=("L", "N", "P", "S")), min_size=1, max_size=20)


@pytest.mark.parametrize(
    ("text", "target"),
    [
        ("m", AliasTarget("m")),
        ("org/m:8b", AliasTarget("org/m:8b")),
        ("m@v2", AliasTarget("m", "v2")),
        ("m@", AliasTarget("m", "")),
        ("m@2026-11-21@b", AliasTarget("m", "2026-11-21@b")),
        ("we@@ird", AliasTarget("we@ird")),
        ("we@@ird@v1", AliasTarget("we@ird", "v1")),
        ("m@v1=90", AliasTarget("m", "v1", 90.0)),
        ("m=0.5", AliasTarget("m", None, 0.5)),
        ("m@a=b=0", AliasTarget("m", "a=b", 0.0)),
    ],
)
def test_a_target_is_read_as_it_is_written(text: str, target: AliasTarget) -> None:
    assert read_target(text, weighted=True) == target


def test_without_weights_an_equals_sign_is_part_of_the_name() -> None:
    assert read_target("m=1") == AliasTarget("m=1")


@pytest.mark.parametrize(
    ("texts", "complaint"),
    [
        ([], "no target"),
        (["m@v1=90", "m@v2"], "every target a weight, or none"),
        (["m=x"], "no weight"),
        (["m=-1"], "a weight of -1"),
        (["m=nan"], "a weight of nan"),
        (["m=inf"], "a weight of inf"),
        (["m=1e7"], "a weight of"),
        (["@v1"], "no model's name"),
        (["two words"], "no model's name"),
        (["x" * 257], "no model's name"),
        (["m@" + "v" * 257], "no version"),
        (["m@ v"], "no version"),
    ],
)
def test_what_cannot_be_a_target_is_refused_with_a_reason(texts: list[str], complaint: str) -> None:
    with pytest.raises(BadAlias, match=complaint):
        read_targets(texts)


@settings(max_examples=60)
@given(NAMES, st.none() | NAMES)
def test_every_target_survives_being_written_and_read(model: str, version: str | None) -> None:
    target = AliasTarget(model, version)
    assert read_target(str(target)) == target


@settings(max_examples=40)
@given(
    st.lists(
        st.tuples(NAMES, st.none() | NAMES, st.floats(0.001, 1e6)),
        min_size=1,
        max_size=5,
        unique_by=lambda each: each[:2],
    ),
    st.booleans(),
    st.none() | st.floats(0.001, 1.0),
)
def test_what_is_kept_of_an_alias_makes_the_same_alias(
    targets: list[tuple[str, str | None, float]], sticky: bool, share: float | None
) -> None:
    mirror = None if share is None else AliasMirror(AliasTarget("shadow", "v9"), share)
    alias = Alias("a", tuple(AliasTarget(*each) for each in targets), sticky, mirror, (AliasTarget("light"),))
    assert alias_of("a", alias.to_dict()) == alias


@pytest.mark.parametrize(
    "value",
    [
        {},
        {"targets": 3, "sticky": True, "mirror": None, "fallback": []},
        {"targets": [{"model": "m"}], "sticky": True, "mirror": None, "fallback": []},
        {
            "targets": [{"model": "m", "version": None, "weight": -1}],
            "sticky": 1,
            "mirror": None,
            "fallback": [],
        },
    ],
)
def test_what_cannot_be_understood_is_no_alias(value: dict[str, object]) -> None:
    with pytest.raises(BadAlias):
        alias_of("a", value)


@pytest.mark.parametrize(
    ("alias", "complaint"),
    [
        (Alias("two words", (AliasTarget("m"),)), "no model's name"),
        (Alias("a", (AliasTarget("m", weight=0),)), "every weight is 0"),
        (Alias("a", (AliasTarget("m", "v"), AliasTarget("m", "v"))), "named twice"),
        (Alias("a", tuple(AliasTarget(f"m{n}") for n in range(TARGETS + 1))), "targets; 16 are allowed"),
        (Alias("a", fallback=(AliasTarget("a"),)), "its own fallback"),
        (Alias("a", mirror=AliasMirror(AliasTarget("m"), 0.0)), "over 0 and at most 1"),
        (Alias("a", mirror=AliasMirror(AliasTarget("m"), float("nan"))), "over 0 and at most 1"),
    ],
)
def test_what_would_make_no_sense_is_refused(alias: Alias, complaint: str) -> None:
    with pytest.raises(BadAlias, match=complaint):
        check_alias(alias)


def test_a_name_without_targets_stands_for_the_model_of_that_name() -> None:
    alias = Alias("m", fallback=(AliasTarget("light"),))
    assert (alias.stands_for, alias.shadows, alias.empty) == ((AliasTarget("m"),), True, False)


def test_a_target_is_a_model_and_never_another_alias() -> None:
    aliases = {"prod": Alias("prod", (AliasTarget("m", "v1"),))}
    for alias in (
        Alias("b", (AliasTarget("prod"),)),
        Alias("b", mirror=AliasMirror(AliasTarget("prod"), 0.1)),
    ):
        with pytest.raises(BadAlias, match="'prod' is an alias itself"):
            check_together(aliases, alias)
    with pytest.raises(BadAlias, match="'m' is a target of the alias 'prod', so it is a model"):
        check_together(aliases, Alias("m", (AliasTarget("n"),)))


def test_an_alias_may_have_the_name_of_a_model_it_stands_for() -> None:
    aliases = {"prod": Alias("prod", (AliasTarget("m", "v1"),))}
    canary = Alias("m", (AliasTarget("m", "v1", 95.0), AliasTarget("m", "v2", 5.0)))
    check_together(aliases, canary)
    check_together(aliases | {"m": canary}, Alias("test", (AliasTarget("m", "v2"),)))
    check_together(aliases | {"m": canary}, Alias("other", fallback=(AliasTarget("prod"),)))
