"""What other gateways gave to tenants counts as if it had been given here."""

import pytest

from gateway.domain.request import Tier
from gateway.scheduling.queue.fair import DEBT_WORK, SLACK_WORK
from gateway.scheduling.queue.foreign import by_model, given_elsewhere
from tests.gateway.scheduling.queue.test_order import BATCH, STANDARD, Room


def served(room: Room, count: int) -> dict[str, int]:
    tenants = [room.next().tenant for _ in range(count)]
    return {tenant: tenants.count(tenant) for tenant in ("a", "b")}


def crowd(count: int = 60, **weights: float) -> Room:
    room = Room(**weights)
    room.turns.record_given()
    for _ in range(count):
        room.come("a", SLACK_WORK)
        room.come("b", SLACK_WORK)
    return room


def test_who_was_served_elsewhere_waits_until_the_others_had_as_much() -> None:
    room = crowd()
    room.turns.note_elsewhere({(STANDARD, "a"): 20 * SLACK_WORK}, 0.0)
    assert served(room, 20)["b"] >= 19
    after = served(room, 40)
    assert after["a"] == pytest.approx(after["b"], abs=2)


def test_weights_count_for_it_too() -> None:
    room = crowd(a=4.0)
    room.turns.note_elsewhere({(STANDARD, "a"): 40 * SLACK_WORK}, 0.0)
    assert served(room, 10)["b"] >= 9, "ten times its weight"


def test_another_tier_is_not_concerned() -> None:
    room = crowd()
    room.turns.note_elsewhere({(BATCH, "a"): 20 * SLACK_WORK}, 0.0)
    after = served(room, 20)
    assert after["a"] == pytest.approx(after["b"], abs=2)


def test_a_debt_is_bounded() -> None:
    room = crowd(2)
    room.turns.note_elsewhere({(STANDARD, "a"): 1e12}, 0.0)
    share = room.turns._tiers[STANDARD].share
    assert share._flows["a"].virtual <= share.virtual + DEBT_WORK


def test_what_was_given_is_told_once_and_corrected_by_what_it_cost() -> None:
    room = crowd(2)
    first = room.next()
    assert room.turns.take_given() == {(STANDARD, first.tenant): SLACK_WORK}
    room.turns.settle(first, SLACK_WORK + 70.0, 1.0)
    assert room.turns.take_given() == {(STANDARD, first.tenant): 70.0}
    assert room.turns.take_given() == {}


def test_a_request_that_waited_alone_is_told_like_any_other() -> None:
    room = Room()
    room.turns.record_given()
    turn = room.come("a", 40.0)
    room.turns.remove(turn)
    room.turns.depart_alone(turn, 0.0, 1.0)
    assert room.turns.take_given() == {(STANDARD, "a"): 40.0}


def test_a_gateway_that_is_alone_keeps_nothing() -> None:
    room = Room()
    room.come("a")
    room.next()
    assert room.turns._tiers[STANDARD].share.given is None


def test_each_hears_of_the_others() -> None:
    first, second, third = given_elsewhere([{(1, "a"): 5.0, (1, "b"): 1.0}, {(1, "a"): 7.0}, {}])
    assert first == {(1, "a"): 7.0}
    assert second == {(1, "a"): 5.0, (1, "b"): 1.0}
    assert third == {(1, "a"): 12.0, (1, "b"): 1.0}


def test_a_tenant_that_was_alone_elsewhere_owes_nothing_to_those_who_come_later() -> None:
    room = Room()
    room.turns.record_given()
    for second in range(100):
        room.turns.note_elsewhere({(STANDARD, "a"): 4 * SLACK_WORK}, float(second))
    for _ in range(40):
        room.come("a", SLACK_WORK)
        room.come("b", SLACK_WORK)
    shares = served(room, 40)
    assert shares["a"] == pytest.approx(shares["b"], abs=6), "the latest second of it at most"


def test_work_that_is_taken_back_elsewhere_gives_no_more_than_a_little_lead() -> None:
    room = crowd()
    for _ in range(3):
        room.turns.note_elsewhere({(STANDARD, "a"): -1e308}, 0.0)
    assert served(room, 60)["b"] >= 15


def test_a_gateway_that_is_alone_again_keeps_nothing() -> None:
    room = crowd(2)
    room.turns.record_given(False)
    room.next()
    assert room.turns.take_given() == {}
    assert room.turns._tiers[STANDARD].share.given is None


def test_each_model_hears_of_its_own() -> None:
    given = {("x", Tier.BATCH, "a"): 1.0, ("x", Tier.REALTIME, "a"): 2.0, ("y", Tier.BATCH, "b"): 3.0}
    ranks = {Tier.REALTIME: 0, Tier.BATCH: 2}
    assert by_model(given, ranks) == {"x": {(2, "a"): 1.0, (0, "a"): 2.0}, "y": {(2, "b"): 3.0}}
