"""Each attempt is made by one process, a slow receiver holds up nobody, and nothing is forgotten before its
end."""

import threading
from collections import Counter
from dataclasses import replace

import pytest

from gateway.domain.webhooks import DeliveryState, DeliveryVerdict, WebhookEvent
from gateway.storage.errors import RecordError, UnknownRecord
from gateway.storage.webhooks.events import note_events
from gateway.storage.webhooks.outbox import DeliveryClaim
from tests.gateway.storage.jobs.desk import NOW_S, JobDesk

CLAIM = DeliveryClaim(10, 60.0, per_host=4, per_tenant=8)
DELIVERED = DeliveryVerdict(DeliveryState.DELIVERED, None, 200)


def note(
    desk: JobDesk, number: int = 1, host: str = "h.example", tenant: str = "t", object_id: str = "job"
) -> None:
    event = WebhookEvent(tenant, object_id, "job.succeeded", f"https://{host}/x")
    with desk.store.database.write() as connection:
        note_events(connection, [event] * number, NOW_S)


def test_an_attempt_is_one_process_s_until_its_lease_is_over(desk: JobDesk) -> None:
    note(desk)
    outbox = desk.store.webhooks
    (first,) = outbox.claim(CLAIM, NOW_S)
    assert (first.attempts, first.attempted_s, first.state) == (1, NOW_S, DeliveryState.WAITING)
    assert outbox.claim(CLAIM, NOW_S) == ()
    desk.clock.now += 61
    (second,) = outbox.claim(CLAIM, NOW_S + 61)
    assert (second.id, second.body, second.attempts) == (first.id, first.body, 2)
    assert not outbox.settle(first, DELIVERED, NOW_S + 62), "the one that was too slow has no say any more"
    assert outbox.settle(second, DELIVERED, NOW_S + 62)
    assert not outbox.settle(second, DELIVERED, NOW_S + 62)
    assert outbox.get(first.id).ended_s == NOW_S + 62


def test_a_lease_of_a_clock_that_was_set_back_is_over(desk: JobDesk) -> None:
    note(desk)
    desk.store.webhooks.claim(CLAIM, NOW_S)
    desk.clock.now -= 1000
    assert len(desk.store.webhooks.claim(CLAIM, NOW_S)) == 1


def test_a_failed_attempt_is_made_again_when_its_time_comes(desk: JobDesk) -> None:
    note(desk)
    outbox = desk.store.webhooks
    (delivery,) = outbox.claim(CLAIM, NOW_S)
    again = DeliveryVerdict(DeliveryState.WAITING, NOW_S + 5, 503, "it answers 503")
    assert outbox.settle(delivery, again, NOW_S + 1)
    assert outbox.claim(CLAIM, NOW_S + 4.9) == ()
    (delivery,) = outbox.claim(CLAIM, NOW_S + 5)
    assert (delivery.attempts, delivery.status, delivery.error) == (2, 503, "it answers 503")


def test_a_receiver_and_a_tenant_have_only_so_many_attempts_at_once(desk: JobDesk) -> None:
    note(desk, 300, "slow.example", "greedy")
    for number in range(300):
        note(desk, 1, f"h{number}.example", "greedy")
    note(desk, 2, "other.example", "modest")
    outbox = desk.store.webhooks
    wide = replace(CLAIM, most=100)
    first = outbox.claim(wide, NOW_S)
    assert Counter(each.event.tenant for each in first) == {"greedy": 8}
    assert Counter(each.event.url for each in first)["https://slow.example/x"] == 4
    busy = replace(wide, hosts={"slow.example": 4}, tenants={"greedy": 8})
    second = outbox.claim(busy, NOW_S)
    assert Counter(each.event.tenant for each in second) == {"modest": 2}
    assert outbox.claim(replace(busy, most=0), NOW_S) == ()


def test_several_processes_at_once_make_each_attempt_once(desk: JobDesk) -> None:
    for number in range(40):
        note(desk, 1, f"h{number}.example")
    taken: list[str] = []

    def take() -> None:
        wide = replace(CLAIM, most=5, per_tenant=100)
        for _ in range(12):
            taken.extend(each.id for each in desk.store.webhooks.claim(wide, NOW_S))

    threads = [threading.Thread(target=take) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(taken) == len(set(taken)) == 40


def test_gone_ends_all_that_waits_for_the_same_address_and_object(desk: JobDesk) -> None:
    note(desk, 2)
    note(desk, 1, object_id="another")
    outbox = desk.store.webhooks
    first = outbox.claim(replace(CLAIM, most=1), NOW_S)[0]
    gone = DeliveryVerdict(DeliveryState.GONE, None, 410, "it answers 410")
    assert outbox.settle(first, gone, NOW_S + 1)
    states = Counter((each.event.object_id, each.state.value) for each in outbox.list())
    assert states == {("job", "gone"): 2, ("another", "waiting"): 1}


def test_an_ended_delivery_can_be_made_again_with_the_same_id(desk: JobDesk) -> None:
    note(desk)
    outbox = desk.store.webhooks
    (delivery,) = outbox.claim(CLAIM, NOW_S)
    with pytest.raises(RecordError, match="still being delivered"):
        outbox.redeliver(delivery.id, NOW_S)
    outbox.settle(delivery, DELIVERED, NOW_S + 1)
    again = outbox.redeliver(delivery.id, NOW_S + 9)
    assert (again.id, again.attempts, again.state, again.ended_s) == (delivery.id, 0, "waiting", None)
    assert [act.kind for act in desk.store.acts.pending(9)] == ["webhook.redeliver"]
    (taken,) = outbox.claim(CLAIM, NOW_S + 9)
    assert taken.body == delivery.body
    with pytest.raises(UnknownRecord, match="evt_x"):
        outbox.redeliver("evt_x", NOW_S)


def test_lists_are_the_newest_first_of_a_tenant_a_state_or_an_object(desk: JobDesk) -> None:
    note(desk, 2, tenant="a", object_id="one")
    note(desk, 1, tenant="b", object_id="two")
    outbox = desk.store.webhooks
    ids = [each.id for each in outbox.list()]
    assert [each.event.tenant for each in outbox.list()] == ["b", "a", "a"]
    assert [each.id for each in outbox.list(after=ids[0], limit=1)] == [ids[1]]
    assert [each.id for each in outbox.list(tenant="b")] == [each.id for each in outbox.list(object_id="two")]
    (taken,) = outbox.claim(replace(CLAIM, most=1), NOW_S)
    outbox.settle(taken, DELIVERED, NOW_S)
    assert [each.id for each in outbox.list(state=DeliveryState.DELIVERED)] == [taken.id]
    with pytest.raises(UnknownRecord):
        outbox.list(after="evt_x")


def test_only_what_ended_long_ago_is_forgotten(desk: JobDesk) -> None:
    note(desk, 3)
    outbox = desk.store.webhooks
    first, second, _ = outbox.claim(CLAIM, NOW_S)
    outbox.settle(first, DELIVERED, NOW_S + 1)
    outbox.settle(second, DELIVERED, NOW_S + 100)
    assert outbox.forget_ended(NOW_S + 50, 10) == 1
    assert first.id not in {each.id for each in outbox.list()}
    assert len(outbox.list()) == 2
