"""Makes jobs of the messages of one queue.

A job is in the store before its message is acknowledged, and its idempotency key is the message's id: a
message that comes again, because somebody died in between, makes no second job. Only as much is taken as can
begin soon: the queue is never drained into the store.
"""

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import structlog

from gateway.domain.errors import RequestError
from gateway.domain.jobs import NewJob
from gateway.domain.queues import QueueOrigin
from gateway.domain.request import Principal
from gateway.jobs.queues.messages import JobMessage, MessageRules, PoisonMessage, read_message
from gateway.jobs.queues.metrics import QueueMetrics
from gateway.jobs.queues.source import BrokerAway, Source, TakenMessage
from gateway.jobs.service import Body, JobDraft
from gateway.storage.errors import BadValue, RecordError, StateError
from gateway.storage.jobs import IdempotencyConflict

_log = structlog.get_logger(__name__)

KEY_PREFIX = "queue "
"""Of idempotency keys. Clients' own have no space, so they are never the same."""

WAIT_S = 2.0

_REASON_CHARS = 1000


class JobSubmitter(Protocol):
    """See :class:`gateway.jobs.service.JobService`."""

    async def prepare(self, principal: Principal, draft: JobDraft, body: bytes) -> NewJob: ...

    async def submit(
        self,
        tenant: str,
        jobs: Sequence[NewJob],
        bodies: "dict[str, Body]",
        *,
        key: str | None,
        fingerprint: Callable[[], bytes],
        origin: QueueOrigin | None,
    ) -> tuple[str, ...]: ...


@dataclass(frozen=True, slots=True)
class IntakeSettings:
    """How messages are taken."""

    ahead: int = 16
    """Jobs of the queue that wait to begin; then nothing more is taken."""
    wait_s: float = WAIT_S
    """For a message, before it is looked again how many jobs wait."""
    full_s: float = 0.5
    """Between two looks while as many wait as may."""
    retry_s: float = 1.0
    """After a failure; it doubles up to ``retry_most_s``."""
    retry_most_s: float = 30.0


class QueueIntake:
    """Of one queue. Belongs to the event loop's thread."""

    def __init__(
        self,
        source: Source,
        rules: MessageRules,
        jobs: JobSubmitter,
        principal: Callable[[], Awaitable[Principal]],
        queued: Callable[[str], int],
        metrics: QueueMetrics,
        settings: IntakeSettings = IntakeSettings(),
        *,
        wall: Callable[[], float] = time.time,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        """``principal`` gives the holder of the key on whose account jobs run: it raises RequestError,
        RecordError and StateError. ``queued`` counts jobs of a queue that wait; it is called in a thread, and
        raises StateError."""
        self._source = source
        self._rules = rules
        self._jobs = jobs
        self._principal = principal
        self._queued = queued
        self._metrics = metrics
        self._settings = settings
        self._wall = wall
        self._sleep = sleep
        self._held: list[TakenMessage] = []
        """Taken, and not yet acknowledged."""
        self._away: bool | None = None
        """None: nothing is wrong. False: something else than the broker is."""
        self._failures = 0

    async def run(self) -> None:
        """Take messages until this is cancelled. Those that were not acknowledged by then come again."""
        while True:
            try:
                took = await self.step()
            except BrokerAway as error:
                self._held.clear()  # they come again
                await self._rest(error)
            except (StateError, RecordError, RequestError) as error:
                await self._rest(error)
            else:
                self._recover()
                if not took:
                    await self._sleep(self._settings.full_s)

    async def step(self) -> bool:
        """Take some messages and make jobs of them. False: as many jobs wait as may, and none was taken.

        Raises BrokerAway; StateError, RecordError and RequestError where no job can be made of any message
        just now.
        """
        principal = await self._principal()
        if not self._held:
            waiting = await asyncio.to_thread(self._queued, self._rules.source)
            room = self._settings.ahead - waiting
            if room < 1:
                return False
            self._held.extend(await self._source.take(room, self._settings.wait_s))
            self._metrics.away(self._rules.source, False)
        while self._held:
            await self._handle(principal, self._held[0])
            self._held.pop(0)
        return True

    async def _handle(self, principal: Principal, message: TakenMessage) -> None:
        try:
            asked = await asyncio.to_thread(read_message, message, self._rules, self._wall())
            new = await self._prepare(principal, asked)
            is_new = await self._submit(new, asked)
        except PoisonMessage as error:
            reason = str(error)[:_REASON_CHARS]
            await self._source.reject(message, reason)
            self._metrics.messages(self._rules.source, "rejected")
            _log.warning("queue_message_rejected", source=self._rules.source, reason=reason)
            return
        await self._source.acknowledge(message)
        self._metrics.messages(self._rules.source, "submitted" if is_new else "repeated")

    async def _prepare(self, principal: Principal, asked: JobMessage) -> NewJob:
        try:
            return await self._jobs.prepare(principal, asked.draft, asked.body)
        except RequestError as error:
            if error.status == 429 or error.status >= 500:  # of the gateway, and not of the message
                raise
            raise PoisonMessage(error.message) from error

    async def _submit(self, new: NewJob, asked: JobMessage) -> bool:
        """False: there was a job of this message already."""
        origin = asked.origin
        try:
            made = await self._jobs.submit(
                new.tenant,
                [new],
                {new.id: asked.body},
                key=f"{KEY_PREFIX}{origin.source} {origin.message_id}",
                fingerprint=lambda: asked.fingerprint,
                origin=origin,
            )
        except IdempotencyConflict:
            raise PoisonMessage(f"another message had the id {origin.message_id!r} before") from None
        except BadValue as error:
            raise PoisonMessage(str(error)) from error
        return new.id in made

    async def _rest(self, error: Exception) -> None:
        """Say once what is wrong, and wait."""
        settings, source = self._settings, self._rules.source
        away = isinstance(error, BrokerAway)
        if self._away != away:
            if away:
                _log.warning("queue_broker_away", source=source, error=_text(error))
            else:
                _log.warning("queue_not_taken", source=source, error=_text(error))
        self._away = away
        self._metrics.away(source, away)
        wait_s = min(settings.retry_most_s, settings.retry_s * 2.0 ** min(self._failures, 30))
        self._failures += 1
        await self._sleep(wait_s * random.uniform(0.5, 1.0))

    def _recover(self) -> None:
        if self._away is not None:
            _log.info("queue_taken_again", source=self._rules.source)
        self._away, self._failures = None, 0


def _text(error: Exception) -> str:
    return error.message if isinstance(error, RequestError) else str(error)
