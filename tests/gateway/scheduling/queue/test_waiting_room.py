"""The waiting room: order, bounds, promises."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.domain.errors import QueueFull
from gateway.domain.request import Principal, Tier
from gateway.scheduling.base import DeploymentConstraints
from gateway.scheduling.queue.tickets import Capacity, Ticket
from gateway.scheduling.queue.waiting_room import WaitingRoom
from tests.gateway.scheduling.queue.waiting import request, room

MANY = Principal("k2", "key", "many")
NO_SLOT = Capacity(slots=1, free=0, hold_s=1.0)


def front(waiting: WaitingRoom, limit: int = 100, model: str = "m") -> list[int]:
    return [
        ticket.number for ticket in waiting.next_tickets(model, {DeploymentConstraints("chat"): limit}, 0.0)
    ]


def everybody(waiting: WaitingRoom, now: float = 0.0) -> list[Ticket]:
    return waiting.next_tickets("m", dict.fromkeys(waiting.lanes("m"), 10**6), now)


def test_those_who_came_first_are_first() -> None:
    waiting = room()
    numbers = [waiting.enter(request(), NO_SLOT, 0.0).number for _ in range(5)]
    assert front(waiting) == numbers
    assert front(waiting, 2) == numbers[:2]


def test_tiers_go_before_arrival() -> None:
    waiting = room()
    batch, standard, realtime = (
        waiting.enter(request(tier=tier), NO_SLOT, 0.0).number
        for tier in (Tier.BATCH, Tier.STANDARD, Tier.REALTIME)
    )
    assert front(waiting) == [realtime, standard, batch]


def test_it_says_how_many_of_each_tier_wait() -> None:
    waiting = room()
    assert waiting.tiers("m") == {}
    waiting.enter(request(tier=Tier.BATCH), NO_SLOT, 0.0)
    assert waiting.tiers("m") == {"batch": 1}
    for tier in (Tier.BATCH, Tier.REALTIME):
        waiting.enter(request(tier=tier), NO_SLOT, 0.0)
    assert waiting.tiers("m") == {"realtime": 1, "batch": 2}


def test_requests_say_how_many_waited_when_they_came() -> None:
    waiting = room()
    first, second, third = (waiting.enter(request(), NO_SLOT, 0.0) for _ in range(3))
    assert [each.ahead for each in (first, second, third)] == [0, 1, 2]
    waiting.leave(first, 1.0, departed=True)
    waiting.requeue(first, (), 2.0)
    assert first.ahead == 2


def test_who_comes_back_keeps_its_turn() -> None:
    waiting = room()
    first, second = (waiting.enter(request(), NO_SLOT, 0.0) for _ in range(2))
    waiting.leave(first, 1.0, departed=True)
    waiting.requeue(first, (), 2.0)
    assert front(waiting) == [first.number, second.number]
    waiting.leave(first, 3.0, departed=True)
    waiting.requeue(first, {"a/d"}, 4.0)
    assert waiting.lanes("m") == [
        DeploymentConstraints("chat"),
        DeploymentConstraints("chat", frozenset({"a/d"})),
    ]
    assert everybody(waiting) == [first, second]


def test_answers_that_have_begun_go_before_others_of_their_tier() -> None:
    waiting = room()
    first, begun = waiting.enter(request(), NO_SLOT, 0.0), waiting.enter(request(), NO_SLOT, 0.0)
    realtime = waiting.enter(request(tier=Tier.REALTIME), NO_SLOT, 0.0)
    waiting.leave(begun, 1.0, departed=True)
    begun.request.version, begun.request.continuing = "v1", True
    waiting.requeue(begun, {"a/d"}, 2.0)
    assert begun.lane == DeploymentConstraints("chat", frozenset({"a/d"}), "v1", continuing=True)
    assert everybody(waiting) == [realtime, begun, first]


def test_lanes_do_not_hold_each_other_up() -> None:
    waiting = room()
    waiting.enter(request(), NO_SLOT, 0.0)
    other = waiting.enter(request(route="embeddings", need="embeddings"), NO_SLOT, 0.0)
    assert waiting.next_tickets("m", {DeploymentConstraints("embeddings"): 10}, 0.0) == [other]


def test_a_queue_is_bounded_in_requests() -> None:
    waiting = room(max_requests=2, max_requests_total=3)
    for _ in range(2):
        waiting.enter(request(), NO_SLOT, 0.0)
    with pytest.raises(QueueFull):
        waiting.enter(request(), NO_SLOT, 0.0)
    waiting.enter(request("other"), NO_SLOT, 0.0)
    with pytest.raises(QueueFull):
        waiting.enter(request("other"), NO_SLOT, 0.0)


def test_the_room_is_bounded_in_body_bytes() -> None:
    waiting = room(max_body_bytes=12)
    tickets = [waiting.enter(request(), NO_SLOT, 0.0) for _ in range(2)]
    with pytest.raises(QueueFull, match="memory"):
        waiting.enter(request(), NO_SLOT, 0.0)
    waiting.leave(tickets[0], 0.0, departed=False)
    waiting.enter(request(), NO_SLOT, 0.0)


def test_a_wait_predicted_too_long_is_refused_at_once() -> None:
    waiting = room(max_wait_s=10)
    slow = Capacity(slots=1, free=0, hold_s=4.0)
    for _ in range(2):
        waiting.enter(request(), slow, 0.0)
    with pytest.raises(QueueFull, match=r"12\.0 s") as refused:
        waiting.enter(request(), slow, 0.0)
    assert refused.value.retry_after_s == pytest.approx(4.0)


def test_a_deadline_that_cannot_be_met_is_refused_at_once() -> None:
    waiting = room()
    slow = Capacity(slots=1, free=0, hold_s=4.0)
    with pytest.raises(QueueFull):
        waiting.enter(request(deadline_s=13.0), slow, 10.0)
    waiting.enter(request(deadline_s=15.0), slow, 10.0)


def test_a_free_slot_means_no_wait() -> None:
    waiting = room()
    assert waiting.predicted_wait_s("m", Tier.BATCH, "tenant", Capacity(1, 1, 100.0), 0.0) == 0.0
    waiting.enter(request(deadline_s=1.0), Capacity(1, 1, 100.0), 0.0)


def test_those_of_later_tiers_are_not_counted_as_ahead() -> None:
    waiting = room()
    for _ in range(9):
        waiting.enter(request(tier=Tier.BATCH), NO_SLOT, 0.0)
    assert waiting.predicted_wait_s("m", Tier.REALTIME, "tenant", NO_SLOT, 0.0) == pytest.approx(1.0)
    assert waiting.predicted_wait_s("m", Tier.BATCH, "tenant", NO_SLOT, 0.0) == pytest.approx(10.0)


def test_a_tenant_waits_for_its_own_share_and_not_for_what_others_piled_up() -> None:
    waiting = room(max_wait_s=20)
    for _ in range(10):
        waiting.enter(request(principal=MANY, output_tokens=1000), NO_SLOT, 0.0)
    few = waiting.predicted_wait_s("m", Tier.STANDARD, "few", NO_SLOT, 0.0)
    many = waiting.predicted_wait_s("m", Tier.STANDARD, "many", NO_SLOT, 0.0)
    assert few == pytest.approx(1.5, abs=0.1)
    assert many == pytest.approx(11.0)


def test_those_of_higher_tiers_who_keep_coming_make_the_wait_longer() -> None:
    waiting, now = room(max_wait_s=1e9), 0.0
    fast = Capacity(slots=10, free=0, hold_s=1.0)
    for _ in range(600):
        now += 0.2
        waiting.leave(waiting.enter(request(tier=Tier.REALTIME), fast, now), now, departed=True)
    for _ in range(9):
        waiting.enter(request(), fast, now)
    assert waiting.predicted_wait_s("m", Tier.REALTIME, "t", fast, now) == pytest.approx(0.1)
    assert waiting.predicted_wait_s("m", Tier.STANDARD, "t", fast, now) == pytest.approx(2.0, rel=0.1)


def test_what_a_tenant_paid_for_a_request_that_comes_back_is_given_back() -> None:
    waiting = room()
    mine = [waiting.enter(request(principal=MANY, output_tokens=1000), NO_SLOT, 0.0) for _ in range(2)]
    other = waiting.enter(request(output_tokens=1000), NO_SLOT, 0.0)
    waiting.leave(mine[0], 1.0, departed=True)
    assert everybody(waiting) == [other, mine[1]]
    waiting.requeue(mine[0], (), 2.0)
    assert everybody(waiting) == [mine[0], other, mine[1]]
    assert mine[0].charged == 0


def test_weights_of_tenants_are_kept() -> None:
    waiting = room(tenant_weights={"many": 3.0}, max_wait_s=1e9)
    for _ in range(20):
        waiting.enter(request(principal=MANY, output_tokens=1000), NO_SLOT, 0.0)
        waiting.enter(request(output_tokens=1000), NO_SLOT, 0.0)
    first = [ticket.tenant for ticket in everybody(waiting)[:20]]
    assert first.count("many") == pytest.approx(15, abs=1)


def test_with_no_slot_in_sight_nothing_is_predicted() -> None:
    waiting = room()
    nothing = Capacity(slots=0, free=0, hold_s=1.0)
    assert waiting.predicted_wait_s("m", Tier.STANDARD, "tenant", nothing, 0.0) is None
    assert waiting.retry_after_s(request(), nothing, 0.0) == 5.0


def test_while_nobody_is_well_requests_may_wait_whatever_the_drain_was() -> None:
    waiting = room(max_wait_s=10)
    for _ in range(5):
        waiting.enter(request(), NO_SLOT, 0.0)
    waiting.still_waiting("m", 0.0)
    with pytest.raises(QueueFull):
        waiting.enter(request(), NO_SLOT, 30.0)
    waiting.enter(request(), Capacity(slots=0, free=0, hold_s=1.0), 30.0)


def test_those_sent_away_are_told_different_times() -> None:
    waiting = room(max_requests=1)
    waiting.enter(request(), NO_SLOT, 0.0)
    promises = [waiting.retry_after_s(request(), NO_SLOT, 0.0) for _ in range(3)]
    assert promises == pytest.approx([1.0, 2.0, 3.0])
    assert waiting.retry_after_s(request(), NO_SLOT, 2.5) == pytest.approx(1.5)


def test_who_is_let_in_does_not_take_back_what_others_were_promised() -> None:
    waiting = room(max_requests=1)
    ticket = waiting.enter(request(), NO_SLOT, 0.0)
    for _ in range(3):
        waiting.retry_after_s(request(), NO_SLOT, 0.0)
    waiting.leave(ticket, 0.5, departed=True)
    ticket = waiting.enter(request(), NO_SLOT, 0.5)
    assert waiting.retry_after_s(request(), NO_SLOT, 0.5) == pytest.approx(3.5)
    waiting.leave(ticket, 0.6, departed=True)
    waiting.enter(request(), Capacity(slots=1, free=1, hold_s=1.0), 0.6)
    assert waiting.retry_after_s(request(), NO_SLOT, 0.6) == pytest.approx(1.0), "there was room for all"


def test_promises_of_one_tier_are_none_of_anothers() -> None:
    waiting = room()
    for _ in range(3):
        waiting.retry_after_s(request(tier=Tier.BATCH), NO_SLOT, 0.0)
    assert waiting.retry_after_s(request(), NO_SLOT, 0.0) == pytest.approx(1.0)


def test_a_refusal_over_the_wait_is_told_when_the_wait_will_have_become_short_enough() -> None:
    waiting = room(max_wait_s=10)
    for _ in range(9):
        waiting.enter(request(), NO_SLOT, 0.0)
    with pytest.raises(QueueFull) as refused:
        waiting.enter(request(deadline_s=4.0), NO_SLOT, 0.0)
    assert refused.value.retry_after_s == pytest.approx(6.0)


def test_no_promise_is_longer_than_clients_listen_to() -> None:
    waiting = room()
    slow = Capacity(slots=1, free=0, hold_s=1000.0)
    assert max(waiting.retry_after_s(request(), slow, 0.0) for _ in range(3)) == 120.0


def test_the_promise_follows_the_measured_drain() -> None:
    waiting = room()
    now = 0.0
    for _ in range(200):
        waiting.enter(request(), Capacity(100, 0, 1.0), now)
    waiting.still_waiting("m", now)
    for _ in range(100):
        now += 0.5
        (ticket,) = waiting.next_tickets("m", {DeploymentConstraints("chat"): 1}, now)
        waiting.leave(ticket, now, departed=True)
    assert waiting.retry_after_s(request(), Capacity(2, 0, 1.0), now) == pytest.approx(0.5, rel=0.05)


def test_a_ticket_expires_with_its_deadline_or_the_longest_wait() -> None:
    waiting = room(max_wait_s=60)
    assert waiting.enter(request(), NO_SLOT, 5.0).expires_s == 65.0
    assert waiting.enter(request(deadline_s=20.0), NO_SLOT, 5.0).expires_s == 20.0


def test_depths_name_only_models_somebody_waits_for() -> None:
    waiting = room()
    ticket = waiting.enter(request("a"), NO_SLOT, 0.0)
    waiting.enter(request("b"), NO_SLOT, 0.0)
    waiting.leave(ticket, 0.0, departed=False)
    assert waiting.depths() == {"b": 1}


@given(st.lists(st.tuples(st.sampled_from(["enter", "leave", "back"]), st.integers(0, 10**6)), max_size=200))
def test_the_room_agrees_with_a_sorted_list(steps: list[tuple[str, int]]) -> None:
    waiting = room(max_wait_s=1e9)
    inside: list[Ticket] = []
    outside: list[Ticket] = []
    for step, pick in steps:
        if step == "enter":
            inside.append(waiting.enter(request(tier=list(Tier)[pick % 3]), NO_SLOT, 0.0))
        elif step == "leave" and inside:
            ticket = inside.pop(pick % len(inside))
            waiting.leave(ticket, 0.0, departed=bool(pick % 2))
            outside.append(ticket)
        elif step == "back" and outside:
            ticket = outside.pop(pick % len(outside))
            waiting.requeue(ticket, ("x",) if pick % 3 == 0 else (), 0.0)
            inside.append(ticket)
        assert waiting.requests == waiting.depth("m") == len(inside)
        assert waiting.body_bytes == 5 * len(inside)
    ranks = {tier: rank for rank, tier in enumerate(Tier)}
    expected = sorted(inside, key=lambda ticket: (ranks[ticket.request.tier], ticket.number))
    assert everybody(waiting) == expected


def test_who_waits_is_told_by_number_age_and_urgency() -> None:
    waiting = room()
    assert waiting.backlog("m") is None
    first = waiting.enter(request(tier=Tier.BATCH), NO_SLOT, 1.0)
    second = waiting.enter(request(), NO_SLOT, 2.0)
    waiting.enter(request(), NO_SLOT, 3.0)
    assert waiting.backlog("m") == (3, 1.0, Tier.STANDARD)
    waiting.leave(first, 4.0, departed=True)
    waiting.leave(second, 4.0, departed=False)
    assert waiting.backlog("m") == (1, 3.0, Tier.STANDARD)


def test_a_wait_for_slots_that_are_coming_is_foretold_from_when_they_are_there() -> None:
    waiting, loading = room(max_wait_s=10.0), Capacity(0, 0, 2.0, coming=2, ready_s=60.0)
    for _ in range(3):
        waiting.enter(request(), loading, 0.0, hold_s=100.0)
    assert waiting.predicted_wait_s("m", Tier.STANDARD, "t", loading, 0.0) == pytest.approx(62.0)
    with pytest.raises(QueueFull) as refused:
        waiting.enter(request(deadline_s=30.0), loading, 0.0, hold_s=100.0)
    assert refused.value.retry_after_s == pytest.approx(61.0)


def test_one_that_waited_alone_and_is_withdrawn_costs_its_tenant_nothing() -> None:
    waiting = room()
    ticket = waiting.enter(request(), NO_SLOT, 0.0)
    waiting.leave(ticket, 1.0, departed=False)
    assert ticket.charged == 0.0
    assert waiting.requests == 0
    served = waiting.enter(request(), NO_SLOT, 2.0)
    waiting.leave(served, 3.0, departed=True)
    assert served.charged == served.work


def test_what_is_given_is_told_by_model_tier_and_tenant_once_others_are_there() -> None:
    waiting = room()
    first = waiting.enter(request("x"), NO_SLOT, 0.0)
    waiting.leave(first, 0.0, departed=True)
    assert waiting.take_given() == {}, "there was nobody to tell"
    waiting.tell(True)
    for model, tier in (("x", Tier.BATCH), ("y", Tier.REALTIME)):
        waiting.leave(waiting.enter(request(model, tier), NO_SLOT, 0.0), 0.0, departed=True)
    given = waiting.take_given()
    assert set(given) == {("x", Tier.BATCH, "tenant"), ("y", Tier.REALTIME, "tenant")}
    assert waiting.take_given() == {}
    waiting.tell(False)
    waiting.leave(waiting.enter(request("x"), NO_SLOT, 0.0), 0.0, departed=True)
    assert waiting.take_given() == {}


def test_who_was_given_much_elsewhere_waits_for_the_others_here() -> None:
    waiting = room()
    for model in ("m", "n"):
        for principal in (Principal("k", "key", "tenant"), MANY):
            waiting.enter(request(model, principal=principal), NO_SLOT, 0.0)
    waiting.note_elsewhere({("m", Tier.STANDARD, "tenant"): 1e5, ("gone", Tier.BATCH, "x"): 1.0}, 0.0)
    assert [ticket.tenant for ticket in everybody(waiting)] == ["many", "tenant"]
    assert [
        ticket.tenant for ticket in waiting.next_tickets("n", dict.fromkeys(waiting.lanes("n"), 9), 0.0)
    ] == [
        "tenant",
        "many",
    ]
    assert "gone" not in waiting.depths()
