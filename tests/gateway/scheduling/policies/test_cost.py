"""The policy ``cost``: where a request is predicted to be done first."""

from collections.abc import Iterator

import pytest
from msgspec import structs

from gateway.domain.residency import read_where
from gateway.scheduling.base import Assignment, Outcome, PendingRequest
from gateway.scheduling.policies.cost import ALL
from gateway.scheduling.policies.late_binding import MOST_PATIENT, PATIENCE_S, HoldTimer
from tests.gateway.scheduling.views import H100, L4, CostFleet, request, view


class Site(CostFleet):
    def assign(self, *items: PendingRequest) -> list[tuple[int, str]]:
        open_now = [each for each in self.views.values() if each.free]
        assigned = self.scheduler.assign("m", items, open_now, self.now)
        return [(each.number, each.key) for each in assigned]

    def choice(self, item: PendingRequest) -> str | None:
        assigned = self.assign(item)
        return assigned[0][1] if assigned else None

    def finish(self, number: int, key: str, *, ok: bool = False) -> None:
        self.views[key].in_flight -= 1
        self.scheduler.finished(number, self.views[key], Outcome(ok, 1.0), self.now)

    @property
    def look_again_s(self) -> float | None:
        return self.scheduler.look_again_s("m")


CHAIN = tuple(range(40))


def site_with_a_reader(*keys: str) -> Site:
    """Two H100s, of which the second has read a prompt of ``CHAIN``."""
    site = Site(*(view(key, 64) for key in keys))
    site.place(request(1, 40 * 256, 10, prefix=CHAIN), keys[-1])
    site.finish(1, keys[-1])
    return site


def test_the_first_request_of_a_new_model_goes_to_the_faster_device() -> None:
    assert Site(view("a", device=L4), view("b", device=H100)).choice(request(1)) == "b"


def test_a_slow_device_is_taken_once_the_fast_one_has_more_to_read_than_it_is_faster() -> None:
    site = Site(view("fast", 64), view("slow", 64, device=L4))
    for number in range(3):
        site.place(request(100 + number, 60_000, 10), "fast")
    assert site.choice(request(1, 500, 5)) == "slow"
    assert site.choice(request(2, 60_000, 5)) == "fast", "this one is worth the wait"


def test_requests_of_one_round_count_for_each_other() -> None:
    site = Site(view("a", 64), view("b", 64))
    keys = [key for _, key in site.assign(*(request(n, 8000) for n in range(10)))]
    assert keys.count("a") == keys.count("b") == 5


def test_a_hit_is_worth_the_seconds_it_saves_and_no_more() -> None:
    site = site_with_a_reader("a", "reader")
    again = request(2, 40 * 256, 10, prefix=CHAIN)
    assert site.choice(again) == "reader"
    site.place(request(3, 4000, 10), "reader")
    assert site.choice(again) == "reader", "less to wait for than to read again"
    for number in range(10, 20):
        site.place(request(number, 8000, 10), "reader")
    assert site.choice(again) == "a"


def test_a_hit_is_worth_as_much_again_to_whoever_is_not_held_up_by_reading() -> None:
    site = site_with_a_reader("a", "reader")
    for number in range(10, 26):
        site.place(request(number, 1, 500), "reader")
    for number in range(30, 44):
        site.place(request(number, 1, 500), "a")
    assert site.choice(request(2, 40 * 256, 10, prefix=CHAIN)) == "reader", "though more runs there"
    assert site.choice(request(3, 40 * 256, 10)) == "a"


def test_what_an_engine_forgot_with_its_model_is_worth_nothing() -> None:
    site = site_with_a_reader("a", "z")
    assert site.choice(request(2, 40 * 256, 10, prefix=CHAIN)) == "z"
    site.scheduler.loaded(site.views["z"], 30.0)
    assert site.choice(request(3, 40 * 256, 10, prefix=CHAIN)) == "a"


def test_a_session_without_fingerprints_goes_where_it_was_last() -> None:
    site = Site(view("a", 64), view("b", 64))
    site.place(request(1, 4000, session="s"), "b")
    site.finish(1, "b")
    assert site.choice(request(2, 4000, session="s")) == "b"
    assert site.choice(request(3, 4000, session="t")) == "a"


def test_load_time_round_trip_and_health_are_part_of_the_prediction() -> None:
    for worse in (
        {"loaded": False},
        {"rtt_s": 0.5},
        {"health_factor": 0.5},
        {"loaded": False, "load_s": 5.0},
    ):
        site = Site(view("a"), view("b"))
        for name, value in worse.items():
            setattr(site.views["a"], name, value)
        assert site.choice(request(1)) == "b"


def test_a_context_that_does_not_fit_goes_nowhere() -> None:
    site = Site(view("a", kv_free_tokens=1000), view("b", kv_free_tokens=1500))
    assert site.choice(request(1, 900, 400)) == "b"
    assert site.choice(request(2, 1400, 400)) is None
    both = site.assign(request(3, 700, 100), request(4, 700, 100), request(5, 700, 100))
    assert sorted(key for _, key in both) == ["a", "b"], "a third would fit neither"


def test_a_context_larger_than_a_memory_does_not_fit_it_however_much_is_cached() -> None:
    site = Site(view("a", kv_free_tokens=4000))
    chain = (1, 2, 3, 4, 5, 6, 7, 8)
    site.place(request(1, 8 * 256, 10, prefix=chain), "a")
    site.finish(1, "a")
    assert site.choice(request(2, 3900, 100, prefix=chain)) == "a"
    site.views["a"].kv_free_tokens = 2500
    assert site.choice(request(2, 3900, 100, prefix=chain)) == "a", "half of it takes no room"
    assert site.choice(request(3, 4000, 100, prefix=chain)) is None


def test_one_that_fits_nowhere_does_not_hold_back_smaller_ones() -> None:
    site = Site(view("a", kv_free_tokens=1000))
    assert site.assign(request(1, 5000), request(2, 5000), request(3, 100, 10)) == [(3, "a")]


def test_a_context_that_waits_for_room_gets_it_however_many_smaller_ones_come() -> None:
    site = Site(view("a", 64, kv_free_tokens=3000), view("b", 64, kv_free_tokens=5000))
    site.views["a"].kv_free_tokens, site.views["b"].kv_free_tokens = 1000, 1200
    large, endless = request(1, 4000, 500), request(2, 100_000)
    small = [request(n, 100, 100) for n in range(10, 14)]
    at_once = site.assign(*(structs.replace(item, arrived_s=site.now) for item in (large, *small)))
    assert {key for _, key in at_once} == {"a", "b"}, "nobody has waited for long"
    assert {key for _, key in site.assign(endless, large, *small)} == {"a"}
    site.views["b"].kv_free_tokens = 5000
    assert (1, "b") in site.assign(endless, large, *small)


def test_a_first_token_that_is_wanted_soon_counts_more() -> None:
    site = Site(view("fast", 64), view("slow", 64, device="NVIDIA A10G"))
    for number in range(6):
        site.place(request(100 + number, 8000, 1), "fast")
    item = request(1, 100, 180)
    assert site.choice(item) == "fast"
    assert site.choice(structs.replace(item, arrived_s=site.now, ttft_s=0.1)) == "slow"


# --- Waiting for somebody better ---


def full_and_slow() -> Site:
    """A fast deployment that is full for a moment, and a slow one that is free."""
    site = Site(view("fast", 1), view("slow", 8, device="Tesla T4"))
    site.place(request(99, 100, 20), "fast")
    return site


def test_a_request_waits_for_a_full_deployment_that_is_done_earlier_all_the_same() -> None:
    site = full_and_slow()
    assert site.choice(request(1, 8000, 200)) is None
    assert site.look_again_s is not None
    assert site.now < site.look_again_s <= site.now + PATIENCE_S
    site.finish(99, "fast")
    assert site.choice(request(1, 8000, 200)) == "fast"
    assert site.look_again_s is None


def test_a_request_waits_for_who_has_read_its_prompt_and_has_no_room_for_it_now() -> None:
    site = Site(view("a", 64, device=L4, kv_free_tokens=20_000), view("z", 64, kv_free_tokens=20_000))
    site.place(request(1, 40 * 256, 30, prefix=CHAIN), "z")
    site.views["z"].kv_free_tokens = 100
    again = request(2, 40 * 256, 200, prefix=CHAIN)
    assert site.choice(again) is None
    assert site.look_again_s is not None
    site.finish(1, "z")
    site.views["z"].kv_free_tokens = 20_000
    assert site.choice(again) == "z"


def test_the_next_slot_is_promised_once() -> None:
    site = full_and_slow()
    site.place(request(98, 100, 20), "slow")
    assigned = site.assign(*(request(n, 4000, 200) for n in range(6)))
    assert {key for _, key in assigned} == {"slow"}
    assert 0 < 6 - len(assigned) <= 4


def test_nobody_waits_longer_than_patience_lasts() -> None:
    site = full_and_slow()
    item = request(1, 8000, 200)
    assert site.choice(item) is None
    site.now += PATIENCE_S + 0.01
    assert site.choice(item) == "slow"


def test_nobody_waits_for_a_deployment_that_may_take_nothing() -> None:
    for name, value in (("usable", False), ("cap", 0)):
        site = full_and_slow()
        setattr(site.views["fast"], name, value)
        assert site.choice(request(1, 8000, 200)) == "slow"
    site = full_and_slow()
    assert site.choice(request(1, 8000, 200, avoid=["fast"])) == "slow"


def test_only_so_many_wait_at_once_and_those_who_left_are_forgotten() -> None:
    hold_timer = HoldTimer()
    assert all(hold_timer.begin(number, 0.0) for number in range(MOST_PATIENT))
    assert not hold_timer.begin(MOST_PATIENT, 0.0)
    assert hold_timer.begin(MOST_PATIENT, PATIENCE_S + 1.0)
    assert hold_timer.left_s(MOST_PATIENT, PATIENCE_S + 2.0) == pytest.approx(PATIENCE_S - 1.0)
    hold_timer.forget(MOST_PATIENT)
    assert hold_timer.left_s(MOST_PATIENT, 100.0) == PATIENCE_S


# --- Large fleets ---


def test_in_a_large_fleet_who_has_read_the_prompt_is_found_though_not_in_the_sample() -> None:
    site = Site(*(view(f"d{n:04}", 8) for n in range(10 * ALL)))
    site.place(request(1, 40 * 256, 10, prefix=CHAIN), "d0333")
    site.finish(1, "d0333")
    assert {site.choice(request(n, 40 * 256, 10, prefix=CHAIN)) for n in range(2, 30)} == {"d0333"}


def test_in_a_large_fleet_the_one_that_fits_is_found_though_not_in_the_sample() -> None:
    site = Site(*(view(f"d{n:04}", 8, kv_free_tokens=10) for n in range(10 * ALL)))
    site.views["d0123"].kv_free_tokens = 5000
    assert site.choice(request(1)) == "d0123"


def test_a_large_fleet_is_looked_at_all_over() -> None:
    site = Site(*(view(f"d{n:04}", 8) for n in range(10 * ALL)))
    keys = {site.choice(request(n)) for n in range(200)}
    assert len(keys) > 10


def test_a_standing_queue_is_not_looked_through_once_nothing_is_free() -> None:
    site = Site(view("a", 1))

    class Counted(list[PendingRequest]):
        seen = 0

        def __iter__(self) -> Iterator[PendingRequest]:
            for each in super().__iter__():
                self.seen += 1
                yield each

    queue = Counted(request(n) for n in range(1000))
    assigned = site.scheduler.assign("m", queue, list(site.views.values()), site.now)
    assert assigned == [Assignment(0, "a")]
    assert queue.seen == 2


def test_a_farther_region_is_taken_only_when_it_is_predicted_to_be_faster() -> None:
    site = Site(view("near", 64), view("far", 64))
    site.views["far"].rtt_s = 0.3
    assert site.choice(request(1, 2000)) == "near"
    taken = 0
    while site.choice(request(2 + taken, 2000)) == "near" and taken < 60:
        site.place(request(100 + taken, 2000), "near")
        taken += 1
    assert 1 < taken < 60, "once near has so much to do that the way is shorter than the wait"
    site.views["far"].rtt_s = 3.0
    assert site.choice(request(200, 2000)) == "near"


def test_overflow_goes_nowhere_else_for_who_may_not_run_there() -> None:
    near, far = view("near", 2, 2), view("far", 64)
    near.labels, far.labels = {"region": "eu"}, {"region": "us"}
    site = Site(near, far)
    stays = structs.replace(request(1), where=read_where("region=eu"))
    assert site.assign(stays, request(2)) == [(2, "far")]


def test_in_a_large_fleet_the_few_are_found_where_a_request_may_run() -> None:
    views = [view(f"d{n:03}") for n in range(300)]
    for each in views:
        each.labels = {"region": "us"}
    for each in views[7::50]:
        each.labels = {"region": "eu"}
    site = Site(*views)
    items = [structs.replace(request(n), where=read_where("region=eu")) for n in range(12)]
    assert {key for _, key in site.assign(*items)} == {each.key for each in views[7::50]}
    first = views[7]
    first.labels = {"region": "us"}
    site.scheduler.deployment_removed(first, site.now)
    site.scheduler.deployment_added(first, site.now)
    assert first.key not in {key for _, key in site.assign(*items)}


def test_one_on_trial_is_tried_only_where_it_is_offered() -> None:
    views = [view(f"d{n:03}") for n in range(100)]
    for each in views:
        each.labels = {"region": "eu"}
    site = Site(*views)
    views[3].trial = True
    item = structs.replace(request(1), where=read_where("region=eu"))
    others = [each for each in views if not each.trial]
    assert all(
        site.scheduler.assign("m", [structs.replace(item, number=n)], others, site.now)[0].key != "d003"
        for n in range(20)
    )
    tried = [
        site.scheduler.assign("m", [structs.replace(item, number=n)], views, site.now)[0].key
        for n in range(20)
    ]
    assert "d003" in tried


def test_who_may_run_only_at_a_busy_place_is_looked_at_again_when_that_has_less_to_read() -> None:
    site = Site(view("eu", 64), view("us", 64), view("us-2", 64))
    for key, each in site.views.items():
        each.labels = {"region": key[:2]}
    site.place(request(100, 40_000, 10), "eu")
    site.place(request(101, 20_000, 10), "us")
    stays = structs.replace(request(1, 1000), where=read_where("region=eu"))
    stays = structs.replace(stays, arrived_s=site.now)
    assert site.choice(stays) is None
    assert site.look_again_s is not None
    site.now = site.look_again_s
    assert site.choice(stays) == "eu"


@pytest.mark.parametrize("first", ["answered", "given up"])
def test_a_session_s_next_request_goes_where_the_one_before_was_answered_not_where_its_copy_was_given_up(
    first: str,
) -> None:
    site = Site(view("a", 64), view("b", 64))
    site.place(request(1, 8000, session="s"), "b")
    site.place(request(2, 8000, session="s"), "a")
    ends = [(1, "b", True), (2, "a", False)]
    for number, key, ok in ends if first == "answered" else reversed(ends):
        site.finish(number, key, ok=ok)
    assert site.choice(request(3, 8000, session="s")) == "b"
