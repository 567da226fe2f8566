"""How many replicas of a model are needed, on the class of device on which that is cheapest. Pure."""

import math
from collections.abc import Callable, Sequence

from gateway.scheduling.scaling.capacity import Fleet, can_meet, is_enough
from gateway.scheduling.scaling.data import ClassFacts, ModelLoad, ScalingOption, ScalingPlan, ScalingRule

TREND_S = 60.0
"""A rise is taken to go on for so long at most: as long again as it was measured over."""

SAVING = 0.15
"""Another class is preferred to that in use where it saves this share."""


def plan(load: ModelLoad, classes: Sequence[ClassFacts], rule: ScalingRule) -> ScalingPlan:
    """What is needed now, without regard for what was needed a moment ago."""
    if not classes:
        return ScalingPlan({}, "no class of device is known for this model")
    waiting = load.waiting + load.batch_waiting
    queued = {each.device: waiting * each.request_s for each in classes}
    arriving = {each.device: load.arriving_per_s * each.request_s for each in classes}
    idle = not load.active and load.idle_s >= rule.idle_s
    if rule.min_replicas == 0 and idle and not any(_is_foreseen(each, rule) for each in classes):
        wanted = {each.device: each.min_replicas for each in classes}
        return ScalingPlan(wanted, f"nothing was asked for {load.idle_s:.0f} s", (), queued, arriving)
    options = tuple(_option(each, load, classes, rule) for each in classes)
    chosen = _chosen(options, classes)
    wanted = {each.device: each.min_replicas for each in classes}
    wanted[chosen.device] = chosen.replicas
    chosen_facts = next(each for each in classes if each.device == chosen.device)
    if chosen_facts.ready < chosen.replicas:  # what there is goes only when its successors are ready
        alone = {each.device: each.replicas for each in options}
        for each in classes:
            if each is not chosen_facts:
                wanted[each.device] = max(each.min_replicas, min(each.present, alone[each.device]))
    return ScalingPlan(wanted, chosen.why, options, queued, arriving)


def expected_per_s(load: ModelLoad, lead_s: float) -> float:
    """What will be asked for in a second when a replica that is wanted now is ready."""
    return load.arriving_per_s + max(0.0, load.rising_per_s2) * min(lead_s, TREND_S)


def expected_queue(load: ModelLoad, present_per_s: float, rule: ScalingRule, lead_s: float) -> float:
    """How many requests will wait then, if what is there goes on as it does. Those are left out that will
    have been refused."""
    per_s = expected_per_s(load, lead_s)
    grown = load.waiting + (per_s - present_per_s) * lead_s
    return min(max(0.0, grown), max(float(load.waiting), per_s * rule.most_wait_s))


def _option(
    facts: ClassFacts, load: ModelLoad, classes: Sequence[ClassFacts], rule: ScalingRule
) -> ScalingOption:
    """The fewest replicas of this class that are enough, beside the least of the others."""
    present_per_s = math.fsum(each.present * each.per_s for each in classes)
    arriving = max(expected_per_s(load, facts.lead_s), facts.forecast_per_s)
    queue = expected_queue(load, present_per_s, rule, facts.lead_s)
    drained = queue / rule.queue_s + load.batch_waiting / rule.batch_queue_s
    base = [(each, each.min_replicas) for each in classes if each is not facts]
    others = sum(count for _, count in base)
    lately = (
        load.active
        or _is_foreseen(facts, rule)
        or (load.idle_s < rule.idle_s and any(each.present for each in classes))
    )
    least = max(facts.min_replicas, max(rule.min_replicas, int(lately)) - others)
    most = max(least, min(facts.max_replicas, rule.max_replicas - others))

    def enough(count: int, drained_per_s: float = drained) -> bool:
        return is_enough(Fleet([*base, (facts, count)]), rule, arriving, drained_per_s)

    lasting = _fewest(lambda count: enough(count, 0.0), least, most)
    busy = min(most, facts.present, _filled(load, facts, base))
    replicas = max(busy, _fewest(enough, lasting, most) if drained else lasting)
    missed = can_meet(facts, rule)
    meets = not missed and enough(lasting, 0.0)
    prices = [(each.price_hour, count) for each, count in [*base, (facts, lasting)] if count]
    known = all(price is not None for price, _ in prices)
    cost = math.fsum((price or 0.0) * count for price, count in prices) if known else None
    why = _words(facts, replicas, most, missed, meets, load)
    return ScalingOption(facts.device, replicas, lasting, cost, meets, why)


def _is_foreseen(facts: ClassFacts, rule: ScalingRule) -> bool:
    """Whether so much is foreseen that something will be asked for before a replica is idle for too long."""
    return facts.forecast_per_s * rule.idle_s >= 1.0


def _filled(load: ModelLoad, facts: ClassFacts, base: Sequence[tuple[ClassFacts, int]]) -> int:
    """Replicas of the class that what runs now fills: so many are not taken away, whatever is computed."""
    left = load.in_flight - Fleet(base).slots
    return math.ceil(left / facts.slots) if left > 0 else 0


def _fewest(enough: Callable[[int], bool], least: int, most: int) -> int:
    """The smallest count from ``least`` to ``most`` that is enough; ``most`` where none is."""
    low, high = least, least
    while high < most and not enough(high):
        low, high = high + 1, min(most, max(high + 1, 2 * high))
    while low < high:
        middle = (low + high) // 2
        if enough(middle):
            high = middle
        else:
            low = middle + 1
    return high


def _chosen(options: Sequence[ScalingOption], classes: Sequence[ClassFacts]) -> ScalingOption:
    """The cheapest that meets the rule, or, where none does, the cheapest of all. Without prices the one with
    the fewest replicas is. That in use stays unless another saves enough."""
    meeting = [each for each in options if each.meets] or list(options)
    priced = [each for each in meeting if each.cost_hour is not None]
    pool = priced or meeting
    present = {each.device: each.present - each.min_replicas for each in classes}
    best = min(pool, key=lambda each: (_cost(each), each.lasting, -present[each.device], each.device))
    in_use = max(pool, key=lambda each: (present[each.device], each is best))
    if present[in_use.device] > 0 and _cost(best) > (1.0 - SAVING) * _cost(in_use):
        return in_use
    return best


def _cost(option: ScalingOption) -> float:
    return float(option.lasting) if option.cost_hour is None else option.cost_hour


def _words(facts: ClassFacts, replicas: int, most: int, missed: str, meets: bool, load: ModelLoad) -> str:
    speed = "measured" if facts.measured else "not measured yet"
    asked = (
        f"{load.arriving_per_s:.3g} requests/s of {facts.request_s:.3g} device-seconds each ({speed}), "
        f"{load.waiting + load.batch_waiting} wait"
    )
    if facts.forecast_per_s > expected_per_s(load, facts.lead_s):
        asked = f"{asked}, {facts.forecast_per_s:.3g} requests/s are foreseen in {facts.lead_s:.0f} s"
    if missed:
        return f"{asked}; {missed}"
    if not meets:
        return f"{asked}; {most} are allowed at most, which is too few"
    return f"{asked}; {replicas} {facts.device or 'of an unnamed device'} keep the p99"
