"""Those who come while nobody waits in line, until they have their slots or must line up."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.domain.request import Principal, RequestBody, Tier
from gateway.scheduling.base import DeploymentConstraints
from gateway.scheduling.queue.tickets import Capacity, Ticket
from gateway.scheduling.queue.waiting_room import WaitingRoom
from tests.gateway.scheduling.queue.waiting import request, room

CHAT = DeploymentConstraints("chat")
NO_SLOT = Capacity(slots=1, free=0, hold_s=1.0)
SLOTS = Capacity(slots=99, free=99, hold_s=1.0)


def enter(waiting: WaitingRoom, tier: Tier = Tier.STANDARD, now: float = 0.0) -> Ticket:
    """Where a slot is free for it."""
    return waiting.enter(request(tier=tier), None, now)


def in_turn(waiting: WaitingRoom, limit: int = 100) -> list[Ticket]:
    return waiting.next_tickets("m", {CHAT: limit}, 0.0)


def test_those_who_come_together_are_in_line_once_their_turns_are_asked_for() -> None:
    waiting = room()
    first = enter(waiting, now=1.0)
    assert waiting.newcomers("m") == [first]
    assert first.waiting
    assert waiting.lanes("m") == [CHAT]
    assert in_turn(waiting) == [first]
    assert in_turn(waiting, limit=0) == []
    assert waiting.newcomers("m") == [first], "one alone has no turn among others"
    urgent = enter(waiting, Tier.REALTIME, 2.0)
    assert waiting.newcomers("m") == [first, urgent]
    assert waiting.lanes("m") == [CHAT]
    assert waiting.tiers("m") == {"realtime": 1, "standard": 1}
    assert in_turn(waiting) == [urgent, first]
    assert waiting.newcomers("m") == []
    later = enter(waiting)
    assert waiting.newcomers("m") == [], "others wait in line"
    last = waiting.enter(request(tier=Tier.BATCH), NO_SLOT, 2.0)
    backlog = waiting.backlog("m")
    assert backlog is not None
    assert backlog.oldest_s == 1.0
    waiting.leave(urgent, 3.0, departed=True)
    for each in (first, later, last):
        waiting.leave(each, 3.0, departed=False)
    assert not first.waiting
    assert waiting.lanes("m") == []
    assert waiting.depth("m") == 0


def test_those_who_are_withdrawn_before_they_are_in_line_cost_nothing() -> None:
    waiting = room()
    tickets = [enter(waiting) for _ in range(3)]
    waiting.leave(tickets[1], 1.0, departed=False)
    assert in_turn(waiting) == [tickets[0], tickets[2]]
    assert tickets[1].charged == 0.0


def test_one_whose_answer_has_begun_is_in_line_at_once() -> None:
    waiting = room()
    ticket = enter(waiting)
    waiting.leave(ticket, 0.0, departed=True)
    ticket.request.continuing = True
    waiting.requeue(ticket, (), 1.0)
    assert waiting.newcomers("m") == []
    other = enter(waiting)
    assert waiting.newcomers("m") == []
    assert in_turn(waiting) == [other]
    assert waiting.next_tickets("m", dict.fromkeys(waiting.lanes("m"), 9), 2.0) == [ticket, other]


def test_those_who_could_not_be_placed_line_up() -> None:
    waiting = room()
    waiting.line_up("m")
    tickets = [enter(waiting) for _ in range(2)]
    waiting.line_up("m")
    assert waiting.newcomers("m") == []
    assert in_turn(waiting) == tickets


@given(
    st.lists(
        st.tuples(st.sampled_from("abc"), st.sampled_from(list(Tier)), st.integers(0, 2000)), max_size=12
    ),
    st.lists(st.integers(0, 11), max_size=12),
)
def test_tenants_are_charged_as_if_all_had_waited_in_line(
    arrivals: list[tuple[str, Tier, int]], order: list[int]
) -> None:
    """Whoever is given a slot before others line up, and whoever is left after that, has the same turns."""
    rooms = room(), room()
    for waiting, lines_up in zip(rooms, (False, True), strict=True):
        tickets = []
        for tenant, tier, tokens in arrivals:
            who = Principal("k", "key", tenant)
            ticket = waiting.enter(request(tier=tier, principal=who, input_tokens=tokens), None, 0.0)
            tickets.append(ticket)
        if lines_up:
            waiting.line_up("m")
        taken = {index for index in order if index < len(tickets)}
        for index in sorted(taken):
            waiting.leave(tickets[index], 0.0, departed=True)
        for tenant, tier, _ in arrivals:
            who = Principal("k", "key", tenant)
            waiting.enter(request(tier=tier, principal=who), SLOTS, 1.0)
    one, other = (
        [ticket.number for ticket in waiting.next_tickets("m", {CHAT: 99}, 1.0)] for waiting in rooms
    )
    assert one == other


@pytest.mark.parametrize(
    ("settings", "most"),
    [
        ({"max_requests": 2}, 2),
        ({"max_requests_total": 3}, 3),
        ({"max_body_bytes": 10}, 2),  # a body has five bytes
        ({"max_requests": 0}, 0),
    ],
)
def test_it_would_take_those_for_whom_there_are_slots_up_to_its_bounds(
    settings: dict[str, int], most: int
) -> None:
    waiting, taken = room(**settings), 0
    while taken < 5 and waiting.would_take(request()):
        waiting.enter(request(), None, 0.0)
        taken += 1
    assert taken == most


def test_it_takes_nobody_at_once_where_others_wait_in_line() -> None:
    waiting = room()
    enter(waiting)
    assert waiting.would_take(request())
    waiting.line_up("m")
    assert not waiting.would_take(request())
    assert waiting.would_take(request("another"))
    assert waiting.would_take(request("another", body=RequestBody(b"1" * 1000)))
