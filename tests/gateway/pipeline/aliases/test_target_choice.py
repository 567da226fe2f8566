"""Sessions stay at their targets as far as weights allow."""

from collections import Counter
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.domain.aliases import Alias, AliasTarget
from gateway.pipeline.aliases.target_choice import TargetChoice, uniform_hash

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
    drawn = [uniform_hash(key, "mirror") for key in KEYS]
    assert 0.45 < sum(drawn) / len(drawn) < 0.55
    assert 60 <= sum(each < 0.1 for each in drawn) <= 140
    assert (
        sum((uniform_hash(key, "mirror") < 0.5) != (uniform_hash(key, "other") < 0.5) for key in KEYS) > 400
    )
