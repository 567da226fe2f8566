"""Which regions one request may use now. Pure.

Each region has a price for the request: seconds of waiting that going there is worth, the round trip
included. A region is used only if at every cheaper one the wait is worth more than the difference. So work
goes to the nearest while that has room, and elsewhere when waiting costs more. Weighted shifts and pilot
lights are prices, too; a region that was lost and is back (:mod:`gateway.scheduling.regions.standing`) is
left out as long as there is another.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import isinf

from gateway.scheduling.base import DeploymentView
from gateway.scheduling.policies.late_binding import READ_AHEAD_S
from gateway.scheduling.regions.settings import RegionSettings
from gateway.scheduling.regions.standing import Standing

_LEFT_ALONE = frozenset((Standing.DOWN.value, Standing.HELD.value, Standing.RETURNING.value))

NEAR_S = 0.005
"""Prices that differ by less are equal: a measured round trip varies."""


@dataclass(slots=True)
class RegionOffer:
    """What one region has for requests of one fit."""

    region: str
    rtt_s: float
    """To the nearest of its deployments."""
    free: int
    """Slots; whoever gives one away counts it down."""
    standing: Standing = Standing.UP
    share: float = 1.0
    """Of what would go there; less than 1 after it was away."""
    views: Sequence[DeploymentView] = ()
    """Its deployments that suit."""

    def for_context(self, tokens: int) -> "RegionOffer":
        """The same for a request of so many tokens: without the slots of deployments that say they have no
        room for its context."""
        short = [
            each for each in self.views if each.kv_free_tokens is not None and each.kv_free_tokens < tokens
        ]
        if not short:
            return self
        return replace(self, free=max(0, self.free - sum(each.free for each in short)))

    def wait_s(self, waiting: "Waiting", now: float) -> float:
        """How long a request waits there, as far as is known: where no slot is free, what the last of those
        who wait will wait, and no less than it has waited; else until the prompts there are read."""
        if self.free > 0:
            ready = [each.load.wait_s(now) * each.load.queueing for each in self.views if each.free > 0]
            return max(0.0, min(ready, default=0.0) - READ_AHEAD_S)
        each = waiting.behind // max(1, len(self.views))
        slot_s = min((view.load.slot_wait_s(now, each) for view in self.views), default=0.0)
        return max(waiting.waited_s, slot_s)


@dataclass(frozen=True, slots=True)
class Waiting:
    """What counts of one request that waits."""

    waited_s: float
    behind: int
    """Others that wait beside it."""
    shifted_to: str | None = None
    drawn: Mapping[str, float] = field(default_factory=dict)
    """For regions that get a share: a number from 0 to under 1."""


@dataclass(frozen=True, slots=True)
class RegionChoice:
    """Regions that are barred, and why: codes of :data:`gateway.dispatch.decisions.words.REGIONS`."""

    barred: Mapping[str, str]
    nearest: str
    """The cheapest that has something, whatever its standing."""
    shifted_to: str | None = None
    pilots: frozenset[str] = frozenset()
    nearer_lost: bool = False
    """One that was nearer, or cost less, is away."""
    look_in_s: float | None = None
    """When one that has a slot free may be used after all, though nothing else has changed."""

    def reason(self, region: str) -> str:
        """Why the request went to ``region``: a code of :data:`gateway.dispatch.decisions.words.REGIONS`."""
        if region == self.shifted_to:
            return "shifted"
        if region in self.pilots:
            return "pilot_light"
        if region == self.nearest:
            return "failed_over" if self.nearer_lost else "nearest"
        return "failed_over" if self.barred.get(self.nearest) in _LEFT_ALONE else "spilled_over"


def choose(
    offers: Sequence[RegionOffer], waiting: Waiting, settings: RegionSettings, now: float
) -> RegionChoice:
    """The regions barred to one request, of the one or more in ``offers``. A slot is counted as taken in the
    cheapest that has one and is not barred."""
    prices = _prices(offers, waiting.shifted_to, settings)
    nearest = min(offers, key=lambda each: (prices[each.region], each.region)).region
    barred = _left_alone(offers, waiting.drawn)
    there = [each for each in offers if each.region not in barred]
    look_in_s: float | None = None
    for each in there:
        for other in there:
            cheaper_s = prices[each.region] - prices[other.region]
            if cheaper_s <= NEAR_S:
                continue
            if other.wait_s(waiting, now) > cheaper_s:
                continue
            barred[each.region] = _why(each.region, other.region, waiting.shifted_to, settings)
            if each.free > 0 >= other.free and not isinf(cheaper_s):
                left_s = cheaper_s - waiting.waited_s
                look_in_s = left_s if look_in_s is None else min(look_in_s, left_s)
            break
    able = [each for each in there if each.region not in barred and each.free > 0]
    if able:
        min(able, key=lambda each: (prices[each.region], each.region)).free -= 1
        look_in_s = None
    return RegionChoice(barred, nearest, waiting.shifted_to, settings.pilot, look_in_s=look_in_s)


def is_nearer(
    lost: Mapping[str, float], choice: RegionChoice, offers: Sequence[RegionOffer], settings: RegionSettings
) -> bool:
    """Whether one of ``lost``, regions that are away and how far they were in seconds, would have been taken
    before the nearest of ``offers``."""
    rtts_s = {**{each.region: each.rtt_s for each in offers}, **lost}

    def price_s(region: str) -> float:
        return settings.price_of(region) + (rtts_s[region] if settings.nearest_first else 0.0)

    lit = choice.nearest in settings.pilot
    return any(
        (lit and region not in settings.pilot) or price_s(region) + NEAR_S < price_s(choice.nearest)
        for region in lost
    )


def _prices(
    offers: Sequence[RegionOffer], shifted_to: str | None, settings: RegionSettings
) -> dict[str, float]:
    """What each region costs this request. Those that are never used come here only where the request asks
    for them by name: then their price is as good as none."""
    prices: dict[str, float] = {}
    for each in offers:
        price_s = settings.price_of(each.region)
        price_s = 0.0 if isinf(price_s) else price_s
        prices[each.region] = price_s + (each.rtt_s if settings.nearest_first else 0.0)
    lit = settings.pilot.intersection(prices)
    if lit and len(lit) < len(prices):
        dearest_s = max(price_s for region, price_s in prices.items() if region not in lit)
        for region in lit:
            prices[region] += dearest_s + settings.pilot_wait_s
    if shifted_to in prices:
        for region in prices:
            prices[region] += settings.shift_wait_s
        prices[shifted_to] = 0.0
    return prices


def _left_alone(offers: Sequence[RegionOffer], drawn: Mapping[str, float]) -> dict[str, str]:
    """Regions that were away and are left out, unless nothing else is there."""
    left = {
        each.region: each.standing.value
        for each in offers
        if each.share < 1.0 and drawn.get(each.region, 0.0) >= each.share
    }
    return left if len(left) < len(offers) else {}


def _why(region: str, other: str, shifted_to: str | None, settings: RegionSettings) -> str:
    if other == shifted_to:
        return "shifted_away"
    return "pilot" if region in settings.pilot and other not in settings.pilot else "dearer"
