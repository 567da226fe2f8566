"""What is handed to engines, and what waits in the gateway instead."""

import pytest
from msgspec import structs

from gateway.scheduling.base import Outcome, PendingRequest
from gateway.scheduling.learning.knowledge import Knowledge
from gateway.scheduling.policies.completion import RoundLoad
from gateway.scheduling.policies.late_binding import (
    AHEAD_MOST_S,
    MAX_HELD_QUEUE,
    MAX_HOLD_S,
    MOST_DECLINED,
    OFFERED,
    READ_AHEAD_S,
    REST_S,
    STANDS_S,
    BusyDeployments,
    DeclinedOffers,
    is_busy,
    offered_at_once,
)
from tests.gateway.scheduling.views import L4, CostFleet, view
from tests.gateway.scheduling.views import request as drawn

T4 = "Tesla T4"


class Site(CostFleet):
    """Its requests arrive when they are made."""

    def request(self, number: int, input_tokens: int = 8000, output_tokens: int = 10) -> PendingRequest:
        return structs.replace(drawn(number, input_tokens, output_tokens), arrived_s=self.now)

    def assign(self, *items: PendingRequest) -> dict[int, str]:
        assigned = self.scheduler.assign("m", items, list(self.views.values()), self.now)
        return {each.number: each.key for each in assigned}

    @property
    def look_again_s(self) -> float:
        again_s = self.scheduler.look_again_s("m")
        assert again_s is not None
        return again_s


def reading(*keys: str) -> Site:
    """Two H100s with slots free, of which ``keys`` read long prompts."""
    site = Site(view("a", 64), view("b", 64))
    for number, key in enumerate(keys, 900):
        site.place(site.request(number, 30_000), key)
    return site


def test_who_has_enough_to_read_gets_more_when_it_has_less() -> None:
    site = reading("a", "b")
    item = site.request(1)
    assert site.assign(item) == {}
    soonest_s = min(each.load.ready_s for each in site.views.values())
    assert site.look_again_s == pytest.approx(soonest_s - READ_AHEAD_S)
    site.now = site.look_again_s
    assert len(site.assign(item)) == 1


def test_who_comes_later_may_go_first_because_nobody_was_handed_over_too_early() -> None:
    site = Site(view("a", 64))
    site.place(site.request(9, 30_000), "a")
    first, second = site.request(1), site.request(2)
    assert site.assign(first, second) == {}
    site.now = site.look_again_s
    assert list(site.assign(second, first)) == [2], "the order of turns is that of the moment"


def test_in_one_round_everybody_gets_what_it_reads_next_and_no_more() -> None:
    site = Site(view("a", 64), view("b", 64))
    given = site.assign(*(site.request(number) for number in range(6)))
    assert sorted(given.values()) == ["a", "b"]
    short = Site(view("a", 64)).assign(*(site.request(number, 20) for number in range(6)))
    assert len(short) == 6, "six short prompts are less than it takes to hand over"


def test_a_slow_device_is_left_alone_while_a_fast_one_is_done_earlier_all_the_same() -> None:
    site = Site(view("fast", 64), view("slow", 64, device=T4))
    site.place(site.request(9), "fast")
    assert site.assign(site.request(1)) == {}
    assert site.look_again_s < site.now + 1.0


def test_those_who_wait_for_the_fast_ones_count_for_each_other() -> None:
    site = Site(view("fast", 64), view("slow", 64, device=L4))
    site.place(site.request(9), "fast")
    given = site.assign(*(site.request(number, 2000) for number in range(30)))
    assert set(given.values()) == {"slow"}
    assert given.keys().isdisjoint({0, 1}), "the first in line are done earlier by the fast one"
    assert len(given) == 1, "and one is enough for the slow one to read"


def test_who_declined_is_not_asked_again_until_something_else_is_free() -> None:
    declined = DeclinedOffers()
    declined.note(1, frozenset({"slow"}), "h100", 700, 10.0)
    assert declined.waits_for(1, frozenset({"slow"}), 10.01) == ("h100", 700)
    assert declined.waits_for(1, frozenset({"slow", "other"}), 10.01) is None
    assert declined.waits_for(1, frozenset({"slow"}), 10.0 + STANDS_S) is None
    assert declined.waits_for(2, frozenset({"slow"}), 10.01) is None
    declined.forget(1)
    assert declined.waits_for(1, frozenset({"slow"}), 10.01) is None


def test_those_who_declined_and_left_are_forgotten() -> None:
    declined = DeclinedOffers()
    for number in range(MOST_DECLINED + 1):
        declined.note(number, frozenset(), "h100", 1, 0.0)
    assert declined.waits_for(0, frozenset(), 0.0) is None
    assert declined.waits_for(MOST_DECLINED, frozenset(), 0.0) is not None


def test_nobody_is_sent_to_a_slow_device_for_having_waited_for_a_fast_one() -> None:
    site = Site(view("fast", 64), view("slow", 64, device=T4))
    item = site.request(1)
    for second in range(int(MAX_HOLD_S)):
        site.views["fast"].load.ready_s = site.now + 0.3
        assert site.assign(item) == {}, second
        site.now += 1.0
    site.views["fast"].load.ready_s = site.now + 0.3
    assert site.assign(item) == {1: "fast"}, "it is held no longer, and done earlier there all the same"


def test_what_is_cached_is_not_waited_for() -> None:
    site = Site(view("fast", 64), view("slow", 64, device=T4))
    chain = tuple(range(100, 200))
    warm = structs.replace(site.request(5, 25_600, 10), prefix=chain)
    site.place(warm, "fast")
    held = [structs.replace(warm, number=number) for number in range(10, 14)]
    assert site.assign(*held, site.request(1, 4000)) == {}, "the last reads nothing twice before its turn"


def test_who_has_waited_for_very_long_is_handed_over_whatever_is_predicted() -> None:
    site = reading("a", "b")
    item = site.request(1)
    for each in site.views.values():
        each.load.ready_s = site.now + 1000.0
    assert site.assign(item) == {}
    site.now += MAX_HOLD_S
    assert site.assign(item).keys() == {1}


def test_of_a_crowd_those_in_front_are_handed_over_so_that_nobody_is_sent_away_for_a_better_turn() -> None:
    site = reading("a", "b")
    given = site.assign(*(site.request(number) for number in range(MAX_HELD_QUEUE + 5)))
    assert sorted(given) == [0, 1, 2, 3, 4]
    assert (offered_at_once(3), offered_at_once(MAX_HELD_QUEUE), offered_at_once(MAX_HELD_QUEUE + 5)) == (
        3,
        OFFERED,
        MAX_HELD_QUEUE + 5,
    )


def test_a_round_trip_is_part_of_what_an_engine_has_ahead_of_it() -> None:
    near, far = view("near"), view("far")
    far.rtt_s = 0.2
    for each in (near, far):
        each.load.ready_s = 100.2
    assert is_busy(near, 100.0)
    assert not is_busy(far, 100.0)


def test_one_that_is_really_several_and_reads_many_prompts_at_once_is_not_held_back() -> None:
    site = Site(view("several", 1000))
    several = site.views["several"]
    for number in range(200, 400):
        site.place(site.request(number), "several")
        alone_s = several.load.wait_s(site.now)
        site.place(site.request(number + 1000), "several")
        site.now += alone_s
        for each in (number, number + 1000):
            site.scheduler.first_token(each, several, site.now)
        site.now += 1.0
    for number in range(3):
        site.place(site.request(number), "several")
    assert several.load.wait_s(site.now) > 4 * READ_AHEAD_S
    assert site.assign(site.request(10)) == {10: "several"}


def test_while_all_have_enough_to_read_nobody_needs_to_be_asked() -> None:
    site = reading("a", "b")
    assert not site.scheduler.is_resting("m", site.now)
    site.assign(site.request(1))
    assert site.scheduler.is_resting("m", site.now)
    assert not site.scheduler.is_resting("m", site.now + REST_S)
    new = view("new", 64)
    site.scheduler.deployment_added(new, site.now)
    assert not site.scheduler.is_resting("m", site.now)


def test_a_rest_is_over_when_one_that_has_little_to_read_ends_something() -> None:
    site = reading("a", "b")
    site.assign(site.request(1))
    assert site.scheduler.is_resting("m", site.now)
    site.scheduler.finished(900, site.views["a"], Outcome(False, 1.0), site.now)
    assert not site.scheduler.is_resting("m", site.now), "it reads nothing more"


def test_a_first_token_that_came_early_is_a_reason_to_ask_again() -> None:
    site = reading("a", "b")
    site.assign(site.request(1))
    a = site.views["a"]
    assert site.scheduler.first_token(900, a, site.now), "it reads nothing more, and somebody waits"
    assert not site.scheduler.is_resting("m", site.now)
    assert not site.scheduler.first_token(900, a, site.now)
    assert site.assign(site.request(1)) == {1: "a"}
    assert not site.scheduler.first_token(901, site.views["b"], site.now), "nobody is held any more"


def test_of_several_processes_the_one_with_the_oldest_request_is_the_first_to_find_an_engine_ready() -> None:
    fleet, knowledge = [view("a")], Knowledge("m")
    fleet[0].load.begin(1, 100.0, kv_tokens=1, read_s=0.3, output_s=1.0)
    young, old = ([structs.replace(drawn(1), arrived_s=at_s)] for at_s in (100.0, 98.0))

    def is_ready(*waiting: list[PendingRequest]) -> list[bool]:
        return [bool(BusyDeployments(fleet, {}, knowledge, 100.0, each).ready) for each in waiting]

    assert is_ready(young, old) == [False, False], "alone its own order is all there is"
    knowledge.shared = True
    assert is_ready(young, old) == [False, True]
    busy = BusyDeployments(fleet, {}, knowledge, 100.0, young)
    assert busy.next_ready_in_s() == pytest.approx(0.3 - READ_AHEAD_S)
    fleet[0].load.begin(2, 100.0, kv_tokens=1, read_s=AHEAD_MOST_S, output_s=1.0)
    ancient = [structs.replace(drawn(1), arrived_s=0.0)]
    assert is_ready(old, ancient) == [False, False], "not without bound"


def test_what_is_given_in_a_round_makes_busy() -> None:
    views = [view("a", 64), view("b", 64)]
    knowledge = Knowledge("m", views={each.key: each for each in views})
    given = {"a": RoundLoad()}
    given["a"].add(1.0, 100)
    busy = BusyDeployments(views, given, knowledge, 0.0)
    assert [each.key for each in busy.ready] == ["b"]
    assert busy.next_ready_in_s() == pytest.approx(1.0 - READ_AHEAD_S)
    assert busy.held_s(views[0]) == 0.0
    busy.add_held(views[0].device, 1000)
    alone_s = busy.held_s(views[0])
    given["b"] = RoundLoad()
    given["b"].add(1.0, 100)
    busy.note(views[1])
    assert busy.held_s(views[0]) == pytest.approx(alone_s / 2), "two read what is held for their class"
