"""A broker in memory, a service of jobs on a store of files, and a runner by hand."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import orjson

from gateway.domain.jobs import JobOutcome, JobRecord, JobState
from gateway.domain.request import Principal
from gateway.jobs.objects import ObjectOpener
from gateway.jobs.output import AnswerHead, OutputSettings, PartialOutput
from gateway.jobs.output_reader import OutputReader
from gateway.jobs.queues.intake import IntakeSettings, QueueIntake
from gateway.jobs.queues.messages import MessageRules
from gateway.jobs.queues.metrics import QueueMetrics
from gateway.jobs.queues.replies import ReplyDeliverer, ReplySettings
from gateway.jobs.queues.source import BrokerAway, ReplyRefused, TakenMessage
from gateway.jobs.service import JobService
from gateway.pipeline.job_requests import JobRequestReader
from gateway.storage import Store
from gateway.storage.jobs import JobBounds, JobClaim
from gateway.storage.objects import ObjectStore
from tests.gateway.jobs.test_service import KnownSpeeds

NOW_S = 1_800_000_000.0
KEPT_S = NOW_S + 10**6
PATH = "/v1/chat/completions"
RULES = MessageRules("orders", PATH, "m", 10_000)


@dataclass
class FakeSource:
    """Implements ``Source``. What was taken and not settled can be given out again."""

    waiting: list[TakenMessage] = field(default_factory=list)
    held: dict[object, TakenMessage] = field(default_factory=dict)
    dead: list[tuple[bytes, str]] = field(default_factory=list)
    replies: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    asked: list[int] = field(default_factory=list)
    away: bool = False
    dies_before_acknowledging: bool = False
    refused: bool = False
    dies_after_reply: int | None = None
    """With this sequence."""

    def put(self, content: object, **given: Any) -> None:
        body = content if isinstance(content, bytes) else orjson.dumps(content)
        self.waiting.append(TakenMessage(body, object(), **given))

    def lose_consumer(self) -> None:
        """What was taken comes again."""
        self.waiting = [*self.held.values(), *self.waiting]
        self.held.clear()

    async def take(self, most: int, wait_s: float) -> Sequence[TakenMessage]:
        self._check()
        self.asked.append(most)
        found, self.waiting = self.waiting[:most], self.waiting[most:]
        self.held |= {each.handle: each for each in found}
        return found

    async def acknowledge(self, message: TakenMessage) -> None:
        self._check()
        if self.dies_before_acknowledging:
            raise KilledError
        del self.held[message.handle]

    async def reject(self, message: TakenMessage, reason: str) -> None:
        self._check()
        del self.held[message.handle]
        self.dead.append((message.body, reason))

    async def reply(self, to: str, message_id: str, sequence: int, body: bytes) -> None:
        self._check()
        if self.refused:
            raise ReplyRefused("no such queue")
        said = orjson.loads(body)
        assert (said["id"], said["sequence"]) == (message_id, sequence)
        self.replies.append((to, said))
        if self.dies_after_reply == sequence:
            self.dies_after_reply = None
            raise KilledError

    async def close(self) -> None:
        return

    def _check(self) -> None:
        if self.away:
            raise BrokerAway("connection refused")


class KilledError(Exception):
    """The process dies here."""


class QueueWorld:
    """One queue, and what feeds on it."""

    def __init__(self, store: Store, objects: ObjectStore) -> None:
        self.store, self.objects = store, objects
        self.source, self.metrics, self.now_s = FakeSource(), QueueMetrics(), NOW_S
        opener = ObjectOpener(lambda: objects)
        self.jobs = JobService(
            store.jobs,
            opener,
            JobRequestReader(lambda: 100.0),
            KnownSpeeds(),
            JobBounds(queued=50),
            wall=lambda: self.now_s,
        )
        self.answers = OutputReader(opener)
        self.principal = Principal("k", "key", "t")
        self.slept: list[float] = []

    def intake(self, **given: Any) -> QueueIntake:
        async def identify() -> Principal:
            return self.principal

        return QueueIntake(
            self.source,
            RULES,
            self.jobs,
            given.pop("identify", identify),
            self.store.queue_jobs.queued,
            self.metrics,
            IntakeSettings(**given),
            wall=lambda: self.now_s,
            sleep=self._sleep,
        )

    def deliverer(self, reply_bytes: int = 1000, **given: Any) -> ReplyDeliverer:
        return ReplyDeliverer(
            {"orders": self.source},
            self.store.queue_jobs,
            self.store.jobs.get_many,
            self.answers,
            {"orders": reply_bytes},
            self.metrics,
            ReplySettings(**given),
            wall=lambda: self.now_s,
            sleep=self._sleep,
        )

    def listed(self) -> tuple[JobRecord, ...]:
        return self.store.jobs.list(newest_first=False)

    def begin(self) -> JobRecord:
        """Run the next job."""
        (job,) = self.store.job_claims.claim(JobClaim("p", 1, "m", 1, 30.0), self.now_s)
        return job

    async def write(self, job: JobRecord, *parts: bytes) -> PartialOutput:
        """The job's answer so far."""
        assert job.lease is not None
        output = PartialOutput(
            self.objects, job.id, job.lease.generation, OutputSettings(interval_s=3600.0, piece_bytes=10**9)
        )
        await output.begin(AnswerHead(200))
        for part in parts:
            await output.append(part)
            await output._store()
        return output

    async def end(
        self, job: JobRecord, output: PartialOutput | None = None, kind: str = "text/event-stream"
    ) -> None:
        assert job.lease is not None
        result, size = (None, 0) if output is None else await output.finish()
        state = JobState.FAILED if output is None else JobState.SUCCEEDED
        error = {"message": "no luck"} if output is None else None
        headers = (("content-type", kind),)
        outcome = JobOutcome(state, 200 if output else 500, headers, result, size, error)
        assert self.store.job_claims.publish(job.id, job.lease, outcome, self.now_s, KEPT_S)

    def counted(self, name: str, outcome: str) -> float:
        labels = {"source": "orders", "outcome": outcome}
        return self.metrics.registry.get_sample_value(f"{name}_total", labels) or 0.0

    async def _sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        if len(self.slept) > 100:
            raise KilledError
