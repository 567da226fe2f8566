"""The schedule of faults depends on the seed alone and leaves every model somebody."""

from itertools import pairwise

import pytest

from tests.chaos.asks import draw_ask, draw_demo_ask
from tests.chaos.oracle import LATE_S
from tests.chaos.schedule import (
    GATEWAY_KINDS,
    LINK_KINDS,
    LOSS_KINDS,
    LOSS_S,
    WORKER_KINDS,
    Kind,
    draw,
    settle_s,
)
from tests.chaos.town import DEMO, build_town

TOWN = build_town(demo=True)


def test_the_same_seed_gives_the_same_faults_and_another_seed_others() -> None:
    one, again, other = draw(TOWN, 7, 120), draw(TOWN, 7, 120), draw(TOWN, 8, 120)
    assert one == again
    assert one.digest == again.digest != other.digest


def test_the_same_seed_gives_the_same_requests() -> None:
    assert [draw_ask(TOWN, 7, number) for number in range(50)] == [
        draw_ask(TOWN, 7, number) for number in range(50)
    ]
    assert draw_ask(TOWN, 8, 1) != draw_ask(TOWN, 7, 1)
    assert draw_demo_ask(7, 1) == draw_demo_ask(7, 1)


@pytest.mark.parametrize("seed", range(5))
def test_no_second_passes_without_a_cut_and_a_long_run_has_every_kind(seed: int) -> None:
    schedule = draw(TOWN, seed, 1800)
    cuts = [3.0, *(fault.at_s for fault in schedule.faults if fault.kind is Kind.LINK_CUT), 1800.0]
    assert max(after - before for before, after in pairwise(cuts)) <= 1.001
    assert schedule.longest_gap_s <= 1.001
    assert {fault.kind for fault in schedule.faults} == set(Kind)


@pytest.mark.parametrize("seed", range(5))
def test_a_worker_is_taken_away_only_while_another_of_its_model_is_there(seed: int) -> None:
    schedule = draw(TOWN, seed, 600)
    away: dict[str, float] = {}
    for fault in schedule.faults:
        if fault.kind not in WORKER_KINDS:
            continue
        model = TOWN.by_name[fault.target].model
        others = [post.name for post in TOWN.of_model(model) if post.name != fault.target]
        assert any(away.get(name, 0.0) <= fault.at_s for name in others)
        away[fault.target] = fault.at_s + fault.lasts_s + settle_s(TOWN, fault.kind, fault.target)


def test_memory_can_be_judged_as_gateway_and_witness_live_through_the_second_half() -> None:
    late = [fault for fault in draw(TOWN, 1, 1200).faults if fault.at_s > 612]
    assert not [fault for fault in late if fault.kind in (*GATEWAY_KINDS, Kind.STATE_DELETED)]
    killed = {fault.target for fault in late if fault.kind in (Kind.AGENT_KILL, Kind.AGENT_DRAIN)}
    assert TOWN.posts[0].name not in killed
    assert killed


def test_engine_faults_spare_the_demo_model_whose_engine_takes_no_orders() -> None:
    demo = {post.name for post in TOWN.of_model(DEMO)}
    struck = {fault.kind for fault in draw(TOWN, 3, 1800).faults if fault.target in demo}
    assert struck <= {*LINK_KINDS, Kind.AGENT_KILL, Kind.AGENT_DRAIN}


@pytest.mark.parametrize("seed", range(3))
def test_whatever_happens_to_the_gateway_happens_first_in_some_short_run(seed: int) -> None:
    restarts = (Kind.GATEWAY_DRAIN, Kind.GATEWAY_KILL, Kind.STATE_DELETED)
    faults = [fault for fault in draw(TOWN, seed, 120).faults if fault.kind in restarts]
    assert [fault.kind for fault in faults] == [restarts[seed]]
    seconds = [f for f in draw(TOWN, seed, 120).faults if f.kind is Kind.GATEWAY_SECOND]
    assert [second.at_s - faults[0].at_s for second in seconds] == [pytest.approx(30.0, abs=0.01)]


def test_some_run_of_two_minutes_has_each_loss_for_longer_than_an_answer_may_be_late() -> None:
    schedules = [draw(TOWN, seed, 120) for seed in range(12)]
    losses = [fault for each in schedules for fault in each.faults if fault.lasts_s == LOSS_S]
    assert {fault.kind for fault in losses} == set(LOSS_KINDS)
    assert LOSS_S > LATE_S + 20.0
