"""Every event that the store holds is delivered, by the schedule, and a slow receiver holds up nobody."""

import asyncio
import json
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager
from ipaddress import ip_network
from pathlib import Path

import pytest
from openai import OpenAI
from structlog.testing import capture_logs

from gateway.domain.jobs import JobOutcome, JobState, NewJob, ObjectSlice
from gateway.domain.webhook_addresses import WebhookRules
from gateway.domain.webhooks import RETRY_DELAYS_S, AttemptResult, DeliveryState, WebhookEvent
from gateway.jobs.webhooks.deliverer import (
    FORGET_S,
    KEPT_S,
    DelivererBounds,
    EventSender,
    WebhookDeliverer,
)
from gateway.jobs.webhooks.guard import WebhookGuard
from gateway.jobs.webhooks.sender import WebhookSender
from gateway.jobs.webhooks.service import WebhookService
from gateway.storage import Store
from gateway.storage.errors import StateBusy
from gateway.storage.jobs import JobBounds, JobClaim, Submission
from gateway.storage.webhooks.events import note_events
from tests.gateway.jobs.webhooks.receiver import Names, receiving
from tests.support.clock import ManualClock

URL = "https://a.example/hook"
NOTHING = AttemptResult(error="it did not answer within 15 s")


DEFAULT = DelivererBounds()


class Script:
    """A sender that answers as the test says, and remembers what it was given."""

    def __init__(self, *results: AttemptResult) -> None:
        self.results = list(results) or [AttemptResult(200)]
        self.sent: list[tuple[str, Mapping[str, str], bytes]] = []
        self.held: dict[str, asyncio.Event] = {}
        """Attempts at URLs in it wait for their event."""
        self.waiting = Counter[str]()

    async def send(self, url: str, headers: Mapping[str, str], body: bytes) -> AttemptResult:
        self.sent.append((url, headers, body))
        if url in self.held:
            self.waiting[url] += 1
            await self.held[url].wait()
        return self.results.pop(0) if len(self.results) > 1 else self.results[0]


class Counts:
    def __init__(self) -> None:
        self.outcomes = Counter[str]()

    def webhook_attempts(self, outcome: str, /) -> None:
        self.outcomes[outcome] += 1

    def webhook_s(self, outcome: str, seconds: float, /) -> None:
        assert seconds >= 0


class House:
    """A store with a tenant's secret, and deliverers on it."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.wall = ManualClock(1_800_000_000.0)
        self.secret = store.webhook_secrets.create("t", 1.0)
        self.counts = Counts()
        guard = WebhookGuard(WebhookRules((ip_network("127.0.0.0/8"),)), Names(hook_test=[["127.0.0.1"]]))
        self.service = WebhookService(guard, store.webhook_secrets)
        self.sender = WebhookSender(guard)

    def note(self, url: str = URL, number: int = 1, tenant: str = "t", kind: str = "job.succeeded") -> None:
        with self.store.database.write() as connection:
            note_events(connection, [WebhookEvent(tenant, "job_1", kind, url)] * number, self.wall())

    def states(self) -> list[DeliveryState]:
        return [each.state for each in self.store.webhooks.list(limit=1000)]

    @asynccontextmanager
    async def delivering(
        self, sender: EventSender, bounds: DelivererBounds = DEFAULT
    ) -> AsyncIterator[WebhookDeliverer]:
        deliverer = WebhookDeliverer(
            self.store.webhooks,
            self.service.signers,
            sender,
            self.counts,
            bounds=bounds,
            wall=self.wall,
            chance=lambda: 0.0,
            look_s=0.01,
        )
        task = asyncio.create_task(deliverer.run())
        try:
            yield deliverer
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            assert task.cancelled()


@pytest.fixture
def house(tmp_path: Path) -> Iterator[House]:
    with Store.open(tmp_path) as store:
        yield House(store)


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110 (nobody tells us)
            await asyncio.sleep(0.005)


async def test_an_event_is_delivered_once_and_signed(house: House) -> None:
    script = Script()
    house.note()
    async with house.delivering(script), house.delivering(script):
        await until(lambda: house.counts.outcomes.total())
    assert house.states() == [DeliveryState.DELIVERED]
    ((url, headers, body),) = script.sent
    assert (url, headers["webhook-timestamp"]) == (URL, "1800000000")
    assert json.loads(body)["id"] == headers["webhook-id"]
    assert house.counts.outcomes == {"delivered": 1}


async def test_attempts_keep_the_schedule_with_one_id_until_the_last(house: House) -> None:
    script = Script(NOTHING)
    house.note()
    with capture_logs() as lines:
        async with house.delivering(script):
            for number, delay_s in enumerate(RETRY_DELAYS_S, start=1):
                await until(lambda: house.store.webhooks.list()[0].attempted_s == house.wall())
                await until(lambda: sum(house.counts.outcomes.values()) == number)  # noqa: B023
                (waiting,) = house.store.webhooks.list()
                assert (waiting.next_s, waiting.error) == (house.wall() + delay_s, NOTHING.error)
                house.wall.advance(delay_s)
            await until(lambda: house.counts.outcomes["failed"])
    assert house.states() == [DeliveryState.FAILED]
    assert len(script.sent) == 10
    assert len({headers["webhook-id"] for _, headers, _ in script.sent}) == 1
    assert len({headers["webhook-timestamp"] for _, headers, _ in script.sent}) == 10
    assert house.counts.outcomes == {"retried": 9, "failed": 1}
    (warning,) = (line for line in lines if line["log_level"] == "warning")
    assert (warning["event"], warning["host"], warning["attempts"]) == ("webhook_failed", "a.example", 10)
    assert "/hook" not in json.dumps(lines)


async def test_gone_ends_it(house: House) -> None:
    house.note(number=3)
    async with house.delivering(Script(AttemptResult(410)), DelivererBounds(most=1)):
        await until(lambda: house.counts.outcomes.total())
    assert set(house.states()) == {DeliveryState.GONE}
    assert house.counts.outcomes == {"gone": 1}


async def test_a_slow_receiver_and_a_greedy_tenant_hold_up_nobody(house: House) -> None:
    house.store.webhook_secrets.create("other", 1.0)
    script, slow = Script(), "https://slow.example/"
    script.held[slow] = asyncio.Event()
    house.note(slow, 20)
    async with house.delivering(script, DelivererBounds(8, 3, 5)) as deliverer:
        await until(lambda: script.waiting[slow] == 3)
        house.note(URL, 5)
        house.note("https://b.example/", 5, tenant="other")
        await until(lambda: house.counts.outcomes["delivered"] == 10)
        assert script.waiting[slow] == 3
        assert deliverer.at_once == 3
        script.held[slow].set()
        await until(lambda: house.counts.outcomes["delivered"] == 30)
    assert deliverer.at_once == 0


async def test_an_end_that_no_gateway_lived_to_tell_is_told_by_the_next_one(house: House) -> None:
    """The gateway dies right after the job's end is written, and another one in the middle of an attempt."""
    job = NewJob("job_9", "t", "k", "m", "/v1/embeddings", ObjectSlice("b"), webhook=URL)
    house.store.jobs.submit(Submission("t", (job,)), JobBounds(), house.wall())
    (claimed,) = house.store.job_claims.claim(JobClaim("a", 1, "m", 1, 30.0), house.wall())
    assert claimed.lease is not None
    done = JobOutcome(JobState.SUCCEEDED, 200)
    assert house.store.job_claims.publish(claimed.id, claimed.lease, done, house.wall(), house.wall() + 9)
    dying = Script()
    dying.held[URL] = asyncio.Event()
    async with house.delivering(dying):
        await until(lambda: dying.waiting[URL])
    later = house.store.database.interval_s
    next_one = Script()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(house.store.database, "interval_s", lambda connection: later(connection) + 61)
        async with house.delivering(next_one):
            await until(lambda: house.states() == [DeliveryState.DELIVERED])
    assert dying.sent[0][2] == next_one.sent[0][2]
    assert json.loads(next_one.sent[0][2])["data"] == {"id": "job_9"}


async def test_the_sdk_unwraps_what_a_receiver_really_gets(house: House) -> None:
    async with receiving() as receiver:
        house.wall = ManualClock(time.time())  # the SDK compares it with its own
        house.note(f"http://hook.test:{receiver.port}/in", kind="batch.completed")
        async with house.delivering(house.sender):
            await until(lambda: house.states() == [DeliveryState.DELIVERED])
    (got,) = receiver.received
    client = OpenAI(api_key="none", webhook_secret=house.secret)
    event = client.webhooks.unwrap(got.body, got.headers)
    assert event.type == "batch.completed"
    assert event.data.id == "job_1"


async def test_without_a_secret_nothing_is_sent_and_the_list_says_why(house: House) -> None:
    script = Script()
    house.note(tenant="stranger")
    async with house.delivering(script):
        await until(lambda: house.counts.outcomes["retried"])
    (delivery,) = house.store.webhooks.list()
    assert script.sent == []
    assert delivery.error == "its tenant has no secret: trunkline webhook secret create TENANT"


async def test_a_store_that_fails_is_told_once_and_asked_again(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    claim, calls = house.store.webhooks.claim, Counter[str]()

    def failing(*given: object) -> object:
        calls["claim"] += 1
        if calls["claim"] < 4:
            raise StateBusy("the store is locked")
        return claim(*given)  # type: ignore[arg-type]

    monkeypatch.setattr(house.store.webhooks, "claim", failing)
    house.note()
    with capture_logs() as lines:
        async with house.delivering(Script()):
            await until(lambda: house.states() == [DeliveryState.DELIVERED])
    told = [line["event"] for line in lines if line["event"].startswith("webhooks_")]
    assert told == ["webhooks_not_read", "webhooks_read_again"]


async def test_an_outcome_that_cannot_be_noted_is_left_to_the_lease(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(*_: object) -> bool:
        raise StateBusy("the store is locked")

    script = Script()
    house.note()
    with monkeypatch.context() as patch:
        patch.setattr(house.store.webhooks, "settle", failing)
        async with house.delivering(script) as deliverer:
            await until(lambda: script.sent)
            await until(lambda: deliverer.at_once == 0)
    assert house.states() == [DeliveryState.WAITING]


async def test_what_ended_long_ago_is_forgotten(house: House) -> None:
    house.note()
    async with house.delivering(Script()):
        await until(lambda: house.states() == [DeliveryState.DELIVERED])
        house.wall.advance(KEPT_S - FORGET_S)
        house.note()
        await until(lambda: house.states() == [DeliveryState.DELIVERED] * 2)
        house.wall.advance(2 * FORGET_S)
        await until(lambda: len(house.states()) == 1)
