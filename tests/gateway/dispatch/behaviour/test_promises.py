"""How honest the queue is: waits predicted and times told beside what came of them, under a virtual clock."""

from collections import Counter
from functools import cache

import pytest

from gateway.domain.request import Tier
from tests.gateway.scheduling.queue.queueing import Room, Source, median_error

SLOTS = 8
FULL_PER_S = SLOTS * 50.0 / (200.0 * 1.28)
"""Requests a second that fill all slots; 1.28 is the mean of the log-normal factor."""
RUN_S = 800.0


@cache
def ran(*sources: Source, seed: int = 1) -> Room:
    room = Room(SLOTS, max_wait_s=30.0, seed=seed)
    room.run(list(sources), RUN_S)
    return room


def test_every_tier_and_tenant_has_its_part_of_a_crowded_room_and_no_slot_is_idle() -> None:
    """That no slot is idle is asserted by the room at every step."""
    tiers = (Tier.REALTIME, Tier.STANDARD, Tier.BATCH)
    room = ran(*(Source(tenant, 0.6 * FULL_PER_S, tier) for tenant in "ab" for tier in tiers))
    done = Counter[tuple[Tier, str]]()
    for job in room.jobs:
        if job.waited_s is not None and job.came_s < RUN_S / 2:
            done[job.source.tier, job.source.tenant] += job.tokens
    for tier in tiers:
        assert done[tier, "a"] == pytest.approx(done[tier, "b"], rel=0.2)
    assert done[Tier.REALTIME, "a"] > 3 * done[Tier.STANDARD, "a"] > 0
    assert done[Tier.BATCH, "a"] > 0


def test_those_sent_away_are_told_when_there_will_be_room() -> None:
    for load, most in ((1.2, 0.25), (2.0, 0.12)):
        promises = list(ran(Source("a", load * FULL_PER_S)).promises())
        assert len(promises) > 500
        assert median_error(promises) < most


def test_who_comes_back_when_told_is_let_in_unless_too_many_others_come() -> None:
    for load, least in ((1.15, 0.45), (1.2, 0.4)):
        room = ran(Source("a", load * FULL_PER_S))
        back = [job for job in room.jobs if job.told and job.told[0][0] < RUN_S / 2]
        assert len(back) >= 20
        assert sum(job.waited_s is not None and len(job.told) == 1 for job in back) / len(back) > least


def test_waits_are_foretold() -> None:
    room = ran(Source("a", 1.2 * FULL_PER_S))
    assert median_error(room.waits()) < 0.2


def test_waits_are_foretold_by_what_a_tenant_has_coming() -> None:
    room = ran(Source("much", 1.2 * FULL_PER_S), Source("little", 0.3 * FULL_PER_S))
    assert median_error(room.waits(tenant="much")) < 0.25
    much, little = ([was for _, was in room.waits(tenant=name)] for name in ("much", "little"))
    assert sum(little) / len(little) < 0.2 * sum(much) / len(much)
    room = ran(Source("long", 0.1 * FULL_PER_S, tokens=2000.0), Source("short", 0.6 * FULL_PER_S))
    assert median_error(room.waits(tenant="long")) < 0.4


def test_waits_of_lower_tiers_count_on_those_of_higher_ones_who_come_meanwhile() -> None:
    room = ran(Source("a", 0.5 * FULL_PER_S, Tier.REALTIME), Source("b", 0.7 * FULL_PER_S, Tier.BATCH))
    assert median_error(room.waits(Tier.BATCH)) < 0.4
