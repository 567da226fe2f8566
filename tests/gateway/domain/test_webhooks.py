"""Events as OpenAI's SDK reads them, and when another attempt is made."""

import time
from datetime import UTC, datetime
from email.utils import format_datetime

import openai
import pytest
from openai import OpenAI

from gateway.domain.jobs import FINAL, JobState
from gateway.domain.webhooks import (
    RETRY_DELAYS_S,
    AttemptResult,
    Delivery,
    DeliveryState,
    WebhookEvent,
    job_event_type,
    judge_attempt,
    new_event_id,
    new_webhook_secret,
    read_retry_after,
    webhook_headers,
)

NOW_S = 1_800_000_000.0
HOUR_S = 3600


def delivery(kind: str = "batch.completed", object_id: str = "batch_1") -> Delivery:
    event = WebhookEvent("t", object_id, kind, "https://h.example/")
    return Delivery(new_event_id(), event, 1_800_000_000.7, DeliveryState.WAITING, 1, 1, NOW_S)


@pytest.mark.parametrize(
    "kind",
    [
        *(f"batch.{end}" for end in ("completed", "failed", "expired", "cancelled")),
        *(f"response.{end}" for end in ("completed", "failed", "cancelled", "incomplete")),
        *(f"job.{end}" for end in ("succeeded", "failed", "cancelled", "expired")),
    ],
)
def test_the_sdk_takes_every_event(kind: str) -> None:
    made, secret = delivery(kind), new_webhook_secret()
    headers = webhook_headers(made.id, made.body, time.time(), [secret])
    client = OpenAI(api_key="none", webhook_secret=secret)
    event = client.webhooks.unwrap(made.body, headers)
    assert (event.id, event.type, event.data.id) == (made.id, kind, "batch_1")  # type: ignore[union-attr]
    assert (event.object, event.created_at) == ("event", 1_800_000_000)
    known = not kind.startswith("job.")
    if known:
        assert type(event).__name__.lower() == kind.replace(".", "") + "webhookevent"


def test_both_secrets_of_a_rotation_verify_and_no_other() -> None:
    made, old, new = delivery(), new_webhook_secret(), new_webhook_secret()
    headers = webhook_headers(made.id, made.body, time.time(), [new, old])
    for secret in (old, new):
        OpenAI(api_key="none", webhook_secret=secret).webhooks.unwrap(made.body, headers)
    stranger = OpenAI(api_key="none", webhook_secret=new_webhook_secret())
    with pytest.raises(openai.InvalidWebhookSignatureError):
        stranger.webhooks.unwrap(made.body, headers)


def test_what_is_signed_is_id_time_and_body() -> None:
    """The secret, the body and the signature are those of the specification's own example."""
    secret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
    headers = webhook_headers("msg_p5jXN8AQM9LWM0D4loKWxJek", b'{"test": 2432232314}', 1614265330.9, [secret])
    assert headers == {
        "webhook-id": "msg_p5jXN8AQM9LWM0D4loKWxJek",
        "webhook-timestamp": "1614265330",
        "webhook-signature": "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=",
    }


def test_ends_of_jobs_and_of_responses_have_their_names() -> None:
    assert {job_event_type("job_1", state) for state in FINAL} == {f"job.{state}" for state in FINAL}
    assert job_event_type("resp_1", JobState.SUCCEEDED) == "response.completed"
    assert job_event_type("resp_1", JobState.FAILED) == "response.failed"
    assert job_event_type("resp_1", JobState.EXPIRED) == "response.failed"
    assert job_event_type("resp_1", JobState.CANCELLED) == "response.cancelled"


def test_attempts_follow_the_schedule_and_end() -> None:
    refused = AttemptResult(500)
    delays = []
    for attempts in range(1, 10):
        verdict = judge_attempt(refused, attempts, NOW_S, 0.0)
        assert verdict.state is DeliveryState.WAITING
        assert verdict.next_s is not None
        delays.append(verdict.next_s - NOW_S)
    hours = [HOUR_S * each for each in (2, 5, 10, 14, 20, 24)]
    assert delays == [5, 300, 1800, *hours] == list(RETRY_DELAYS_S)
    last = judge_attempt(refused, 10, NOW_S, 0.0)
    assert (last.state, last.next_s, last.status) == (DeliveryState.FAILED, None, 500)
    assert judge_attempt(refused, 11, NOW_S, 0.0).state is DeliveryState.FAILED


def test_chance_makes_a_delay_longer_by_a_tenth_at_most() -> None:
    verdict = judge_attempt(AttemptResult(500), 2, NOW_S, 1.0)
    assert verdict.next_s == pytest.approx(NOW_S + 330)


@pytest.mark.parametrize("status", [200, 201, 204, 299])
def test_every_2xx_is_success(status: int) -> None:
    verdict = judge_attempt(AttemptResult(status, "30"), 1, NOW_S, 0.5)
    assert (verdict.state, verdict.status, verdict.error) == (DeliveryState.DELIVERED, status, None)


@pytest.mark.parametrize("status", [301, 302, 303, 304, 307, 308])
def test_redirects_are_failures(status: int) -> None:
    verdict = judge_attempt(AttemptResult(status), 1, NOW_S, 0.0)
    assert (verdict.state, verdict.next_s) == (DeliveryState.WAITING, NOW_S + 5)
    assert verdict.error == f"it answers {status}: redirects are not followed"


@pytest.mark.parametrize("status", [400, 401, 404, 409, 429, 500, 502, 503, 504, 600])
def test_other_answers_are_failures_that_may_pass(status: int) -> None:
    verdict = judge_attempt(AttemptResult(status), 3, NOW_S, 0.0)
    assert (verdict.state, verdict.next_s) == (DeliveryState.WAITING, NOW_S + 1800)
    assert (verdict.status, verdict.error) == (status, f"it answers {status}")


def test_no_answer_is_a_failure_with_its_reason() -> None:
    verdict = judge_attempt(AttemptResult(error="it did not answer within 15 s"), 1, NOW_S, 0.0)
    assert (verdict.state, verdict.status) == (DeliveryState.WAITING, None)
    assert verdict.error == "it did not answer within 15 s"


def test_gone_ends_it_at_once() -> None:
    verdict = judge_attempt(AttemptResult(410, "5"), 1, NOW_S, 0.0)
    assert (verdict.state, verdict.next_s, verdict.status) == (DeliveryState.GONE, None, 410)


def test_a_receiver_may_ask_for_a_longer_pause_but_not_for_a_shorter_one_or_for_ever() -> None:
    def pause(retry_after: str, attempts: int = 1) -> float:
        verdict = judge_attempt(AttemptResult(503, retry_after), attempts, NOW_S, 0.0)
        assert verdict.next_s is not None
        return verdict.next_s - NOW_S

    assert pause("120") == 120
    assert pause("1") == 5
    assert pause("60", attempts=3) == 1800
    assert pause("99999999") == 86_400
    assert pause("9" * 400) == 86_400


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("0", 0),
        (" 7 ", 7),
        (format_datetime(datetime.fromtimestamp(NOW_S + 90, UTC), usegmt=True), 90),
        ("Fri, 15 Jan 2027 08:00:30", 30),
        (format_datetime(datetime.fromtimestamp(NOW_S - 90, UTC), usegmt=True), 0),
        ("Wed, 21 Oct 9999 07:28:00 GMT", 86_400),
        ("-5", 0),
        ("1.5", 0),
        ("soon", 0),
        ("", 0),
        ("٣", 0),
        ("Wed, 99 Oct 2015 07:28:00 GMT", 0),
    ],
)
def test_pauses_are_seconds_or_dates(text: str, seconds: float) -> None:
    assert read_retry_after(text, NOW_S) == seconds
