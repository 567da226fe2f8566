"""Work that tenants were given by other gateways, so that shares are fair over all of them. Pure.

Each gateway tells once a second what it gave to each tenant of each tier, and hears what the others gave.
That enters the tenants' virtual times as if it had been given here.
"""

from collections.abc import Mapping, Sequence

from gateway.domain.request import Tier

WorkKey = tuple[str, Tier, str]
"""Model, tier and tenant."""

Given = Mapping[tuple[int, str], float]
"""Rank of a tier and tenant → work that one gateway gave."""


def given_elsewhere(given: Sequence[Given]) -> list[dict[tuple[int, str], float]]:
    """What each of the gateways that gave ``given`` is to hear of the others, in their order."""
    heard: list[dict[tuple[int, str], float]] = []
    for number in range(len(given)):
        told: dict[tuple[int, str], float] = {}
        for one in (*given[:number], *given[number + 1 :]):
            for who, work in one.items():
                told[who] = told.get(who, 0.0) + work
        heard.append(told)
    return heard


def by_model(
    given: Mapping[WorkKey, float], ranks: Mapping[Tier, int]
) -> dict[str, dict[tuple[int, str], float]]:
    """What was given, as each model's queue hears it; ``ranks`` are those of the tiers."""
    told: dict[str, dict[tuple[int, str], float]] = {}
    for (model, tier, tenant), work in given.items():
        told.setdefault(model, {})[ranks[tier], tenant] = work
    return told
