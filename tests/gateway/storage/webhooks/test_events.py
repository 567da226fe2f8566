"""Every end of a job that somebody wants to hear of is noted once, in the transaction that ends it."""

from typing import Any

import pytest
from sqlalchemy import Connection

from gateway.domain.jobs import JobOutcome, JobState
from gateway.domain.webhooks import DeliveryState, DeliveryVerdict, WebhookEvent
from gateway.storage.jobs import claims
from gateway.storage.webhooks.events import host_of, note_events, note_job_ends
from gateway.storage.webhooks.outbox import DeliveryClaim
from tests.gateway.storage.jobs.desk import DONE, LEASE_S, NOW_S, JobDesk

URL = "https://hooks.example/h"
CLAIM = DeliveryClaim(10, 60.0, 4, 8)


def noted(desk: JobDesk) -> list[tuple[str, str, str]]:
    return [(each.event.object_id, each.event.type, each.event.url) for each in desk.store.webhooks.list()]


@pytest.mark.parametrize("state", [JobState.SUCCEEDED, JobState.FAILED, JobState.CANCELLED])
def test_a_published_end_is_noted_with_its_job(desk: JobDesk, state: JobState) -> None:
    (job_id,) = desk.submit(1, webhook=URL)
    (job,) = desk.claim("a", 1)
    assert desk.publish(job, JobOutcome(state))
    assert not desk.publish(job, JobOutcome(state))
    assert noted(desk) == [(job_id, f"job.{state}", URL)]
    (delivery,) = desk.store.webhooks.list()
    assert delivery.event.tenant == "t"
    assert (delivery.created_s, delivery.next_s, delivery.state) == (NOW_S + 5, NOW_S + 5, "waiting")


def test_who_publishes_may_say_what_the_end_is_called(desk: JobDesk) -> None:
    desk.submit(1, webhook=URL)
    (job,) = desk.claim("a", 1)
    desk.publish(job, JobOutcome(JobState.SUCCEEDED, event="response.incomplete"))
    assert [kind for _, kind, _ in noted(desk)] == ["response.incomplete"]


def test_a_job_without_a_webhook_and_one_that_is_queued_again_tell_nobody(desk: JobDesk) -> None:
    desk.submit(1)
    desk.submit(1, webhook=URL)
    silent, loud = desk.claim("a", 2)
    desk.publish(silent)
    assert loud.lease is not None
    desk.claims.give_back(loud.id, loud.lease, 0.0)
    assert noted(desk) == []


def test_cancelled_waiting_jobs_and_whole_groups_are_noted(desk: JobDesk) -> None:
    (one,) = desk.submit(1, webhook=URL)
    first, second = desk.submit(2, webhook=URL, group="g")
    desk.jobs.cancel(one, NOW_S, NOW_S)
    desk.jobs.cancel(one, NOW_S, NOW_S)
    desk.jobs.cancel_group("g", NOW_S, NOW_S)
    assert sorted(noted(desk)) == sorted((each, "job.cancelled", URL) for each in (one, first, second))


def test_the_sweep_notes_what_it_ends_and_not_what_it_queues_again(desk: JobDesk) -> None:
    (again,) = desk.submit(1, webhook=URL)
    (cancelled,) = desk.submit(1, webhook=URL)
    desk.claim("a", 2)
    desk.jobs.cancel(cancelled, NOW_S, NOW_S)
    (late,) = desk.submit(1, webhook=URL, deadline_s=NOW_S + 1)
    desk.clock.now += LEASE_S + 1
    assert desk.sweep(NOW_S + 2) == 3
    assert desk.state(again) is JobState.QUEUED
    assert sorted(noted(desk)) == sorted([(cancelled, "job.cancelled", URL), (late, "job.expired", URL)])


def test_an_end_that_is_taken_back_leaves_no_event(desk: JobDesk, monkeypatch: pytest.MonkeyPatch) -> None:
    desk.submit(1, webhook=URL)
    (job,) = desk.claim("a", 1)

    def fail(connection: Connection, *given: Any) -> None:
        note_job_ends(connection, *given)
        raise RuntimeError("the process dies here")

    monkeypatch.setattr(claims, "note_job_ends", fail)
    with pytest.raises(RuntimeError):
        desk.publish(job)
    assert (desk.state(job.id), noted(desk)) == (JobState.RUNNING, [])
    monkeypatch.undo()


def test_no_event_follows_to_who_said_that_it_wants_no_more_of_this_job(desk: JobDesk) -> None:
    desk.submit(1, webhook=URL)
    (job,) = desk.claim("a", 1)
    desk.publish(job, JobOutcome(JobState.FAILED))
    (delivery,) = desk.store.webhooks.claim(CLAIM, NOW_S + 10)
    assert desk.store.webhooks.settle(delivery, DeliveryVerdict(DeliveryState.GONE, None, 410), NOW_S + 11)
    desk.jobs.retry(job.id)
    (job,) = desk.claim("a", 1)
    desk.publish(job, DONE)
    assert [each.event.type for each in desk.store.webhooks.list()] == ["job.failed"]


def test_more_events_than_fit_a_statement_are_noted(desk: JobDesk) -> None:
    events = [WebhookEvent("t", f"batch_{n}", "batch.completed", URL) for n in range(1201)]
    with desk.store.database.write() as connection:
        note_events(connection, events, NOW_S)
    found = desk.store.webhooks.list(limit=5000)
    assert len({each.id for each in found}) == 1201
    assert all("." not in each.id for each in found)


@pytest.mark.parametrize(
    ("url", "host"),
    [("https://A.example:8443/x", "a.example"), ("http://[::1]/", "::1"), ("http://[::1", ""), ("", "")],
)
def test_a_receiver_is_known_by_its_host(url: str, host: str) -> None:
    assert host_of(url) == host
