"""The aliases in memory are as fresh as the store, and sessions stay where they are as weights allow."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import structlog
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.auth import KeyRing
from gateway.domain.aliases import Alias, AliasTarget
from gateway.pipeline.aliases import AliasCache
from gateway.pipeline.aliases.cache import TargetChoice, lot
from gateway.storage import Store

V1, V2 = AliasTarget("m", "v1"), AliasTarget("m", "v2")


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store.open(tmp_path / "state") as opened:
        yield opened


def test_what_another_process_changes_counts_from_the_next_request_on(store: Store) -> None:
    key = store.keys.create("k", "default", 1.0)
    ring, book = KeyRing(store), AliasCache(store.aliases)
    ring.refresher.add(book.read)
    assert not book.choices
    with Store.open(store.state_dir) as command:
        command.aliases.set_targets("prod", (V1,), 1.0)
        ring.authenticate(key)
        assert book.choices["prod"].alias.targets == (V1,)
        command.aliases.set_targets("prod", (V2,), 2.0)
        ring.authenticate(key)
        assert book.choices["prod"].alias.targets == (V2,)
        command.aliases.remove("prod", 3.0)
        ring.authenticate(key)
        assert not book.choices


def test_what_does_not_concern_aliases_leaves_them_as_they_are(store: Store) -> None:
    store.aliases.set_targets("prod", (V1,), 1.0)
    book = AliasCache(store.aliases)
    before = book.choices
    store.keys.create("k", "default", 1.0)
    book.read()()
    assert book.choices is before


def test_an_alias_that_cannot_be_read_is_said_and_the_others_count(store: Store) -> None:
    store.aliases.set_targets("prod", (V1,), 1.0)
    with store._database.write() as connection:
        connection.exec_driver_sql("INSERT INTO aliases VALUES ('new', '{}', 1.0, 1.0)")
    with structlog.testing.capture_logs() as logs:
        book = AliasCache(store.aliases)
    assert set(book.choices) == {"prod"}
    assert [each["alias"] for each in logs if each["event"] == "alias_unreadable"] == ["new"]
    assert "m" in book.versioned
    assert "prod" not in book.versioned


KEYS = [f"session-{number}" for number in range(1000)]
EXPECTED = ["v1", "v0", "v0", "v1", "v2", "v1", "v0", "v2"]
"""Of three equal targets and the first keys."""

WEIGHTS = st.lists(st.floats(0.01, 1000), min_size=2, max_size=5)


def choice(weights: list[float]) -> TargetChoice:
    targets = tuple(AliasTarget("m", f"v{place}", weight) for place, weight in enumerate(weights))
    return TargetChoice(Alias("a", targets))


def places(chosen: TargetChoice) -> dict[str, str | None]:
    return {key: chosen.ranked(key)[0].version for key in KEYS}


@settings(max_examples=15)
@given(WEIGHTS)
def test_every_target_gets_its_share_of_the_keys(weights: list[float]) -> None:
    counted = Counter(places(choice(weights)).values())
    for place, weight in enumerate(weights):
        share = weight / sum(weights)
        spread = (len(KEYS) * share * (1 - share)) ** 0.5
        assert abs(counted[f"v{place}"] - len(KEYS) * share) <= 6 * spread + 1


@settings(max_examples=8)
@given(WEIGHTS, st.floats(1.0, 100.0))
def test_more_weight_only_draws_keys_to_it_and_takes_none_elsewhere(
    weights: list[float], factor: float
) -> None:
    before, after = places(choice(weights)), places(choice([weights[0] * factor, *weights[1:]]))
    assert all(after[key] in (before[key], "v0") for key in KEYS)


@settings(max_examples=10)
@given(WEIGHTS, st.floats(0.01, 100.0))
def test_weights_count_only_beside_each_other(weights: list[float], factor: float) -> None:
    first, second = choice(weights), choice([weight * factor for weight in weights])
    moved = sum(first.ranked(key)[0].version != second.ranked(key)[0].version for key in KEYS[:200])
    assert moved <= 1  # rounding


@settings(max_examples=10)
@given(WEIGHTS)
def test_when_a_target_goes_its_keys_go_to_their_next_choice_and_all_others_stay(
    weights: list[float],
) -> None:
    whole = choice(weights)
    left = TargetChoice(replace(whole.alias, targets=whole.alias.targets[1:]))
    for key in KEYS[:200]:
        ranked = [target.version for target in whole.ranked(key)]
        assert [target.version for target in left.ranked(key)] == [each for each in ranked if each != "v0"]


def test_the_order_in_which_targets_are_named_does_not_count() -> None:
    one = choice([1, 2, 3])
    other = TargetChoice(replace(one.alias, targets=one.alias.targets[::-1]))
    assert places(one) == places(other)


def test_a_choice_is_the_same_in_every_process_and_release() -> None:
    assert [choice([1, 1, 1]).ranked(key)[0].version for key in KEYS[:8]] == EXPECTED


def test_a_target_without_weight_gets_nothing() -> None:
    chosen = TargetChoice(Alias("a", (AliasTarget("m", "v1", 1.0), AliasTarget("m", "v2", 0.0))))
    assert chosen.ranked("anything") == [AliasTarget("m", "v1", 1.0)]


def test_lots_are_spread_evenly_and_differ_by_purpose() -> None:
    drawn = [lot(key, "mirror") for key in KEYS]
    assert 0.45 < sum(drawn) / len(drawn) < 0.55
    assert 60 <= sum(each < 0.1 for each in drawn) <= 140
    assert sum((lot(key, "mirror") < 0.5) != (lot(key, "other") < 0.5) for key in KEYS) > 400
