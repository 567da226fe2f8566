"""Sends what comes of queues' jobs back to where their messages say, each reply at least once.

Replies are noted with the job, so whatever dies, another process goes on with them. The process that runs a
job sends its answer while it is written (:mod:`gateway.jobs.queues.live_replies`). One that does not, because
the queue is not in the settings of the process that does, reads what is stored of the answer: a part of it is
noted before it is sent; should nobody know whether it arrived, just the same is sent again under the same
sequence, and its reader drops the double.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass, replace

import structlog

from gateway.domain.jobs import JobRecord
from gateway.domain.queues import PendingReply, ReplyPlan
from gateway.jobs.object_names import OutputPosition
from gateway.jobs.queues.live_replies import AnswerReader, LiveReplies
from gateway.jobs.queues.metrics import QueueMetrics
from gateway.jobs.queues.reply_bodies import cut, result_body
from gateway.jobs.queues.reply_sender import LeaseLost, ReplySender
from gateway.jobs.queues.source import BrokerAway, ReplyRefused, ReplyTooLong, Source
from gateway.storage.errors import ObjectMissing, StateError
from gateway.storage.queue_jobs import QueueJobStore

_log = structlog.get_logger(__name__)

_FORGOTTEN_AT_ONCE = 500


@dataclass(frozen=True, slots=True)
class ReplySettings:
    """How replies are sent."""

    most: int = 16
    """Jobs whose replies one process sends at once."""
    lease_s: float = 60.0
    look_s: float = 0.5
    """Between two looks for what is to be sent, and at an answer that is being written."""
    retry_s: float = 1.0
    """After a failure; it doubles up to ``retry_most_s``."""
    retry_most_s: float = 300.0
    away_s: float = 15.0
    """The longest wait where the broker was away."""
    refused_s: float = 3 * 86_400.0
    """A reply that its broker has refused for so long is given up."""
    forget_s: float = 60.0
    """Between two looks for jobs of which nobody is told."""


class ReplyDeliverer:
    """For all queues of one process. Belongs to the event loop's thread."""

    def __init__(
        self,
        sources: Mapping[str, Source],
        store: QueueJobStore,
        jobs: Callable[[Collection[str]], Mapping[str, JobRecord]],
        answers: AnswerReader,
        reply_bytes: Mapping[str, int],
        metrics: QueueMetrics,
        settings: ReplySettings = ReplySettings(),
        stream_s: Mapping[str, float] | None = None,
        process: str | None = None,
        *,
        wall: Callable[[], float] = time.time,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        """``sources`` by name. ``jobs`` gives jobs by their ids; it is called in a thread and raises
        StateError. ``reply_bytes``: the longest answer that is sent whole, by source; ``stream_s``: for so
        long bytes are gathered into a reply while an answer is written. ``process`` names this one in the
        store, and is the same when it is started again."""
        self._names = tuple(sources)
        self._store = store
        self._jobs = jobs
        self._answers = answers
        self._reply_bytes = reply_bytes
        self._metrics = metrics
        self._settings = settings
        self._wall = wall
        self._sleep = sleep
        self._process = process
        self._forget_s = 0.0
        self._reachable = True
        self._sender = ReplySender(sources, metrics, settings.lease_s / 2)
        self.live = LiveReplies(
            self._names,
            store,
            answers,
            self._sender,
            self,
            settings.lease_s,
            stream_s or {},
            process,
            sleep=sleep,
        )
        """Answers of the jobs that this process runs."""

    async def run(self) -> None:
        """Send until this is cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self.live.run())
            tasks.create_task(self._keep_looking())

    async def _keep_looking(self) -> None:
        while True:
            try:
                sent = await self.step()
            except StateError as error:
                self._note_state(error)
                sent = 0
            else:
                self._note_state(None)
            if sent < self._settings.most:
                await self._sleep(self._settings.look_s)

    async def step(self) -> int:
        """Send what there is now of some jobs; of how many. Raises StateError."""
        now_s, settings = self._wall(), self._settings
        if now_s >= self._forget_s:
            await asyncio.to_thread(self._store.forget, _FORGOTTEN_AT_ONCE)
            self._forget_s = now_s + settings.forget_s
        found = await asyncio.to_thread(
            self._store.claim, self._names, settings.most, settings.lease_s, now_s, self._process
        )
        if found:
            jobs = await asyncio.to_thread(self._jobs, [reply.job_id for reply in found])
            async with asyncio.TaskGroup() as tasks:
                for reply in found:
                    if reply.job_id in jobs and not self.live.go_on(reply):
                        tasks.create_task(self.attend(reply, jobs[reply.job_id]))
        return len(found)

    async def attend(self, reply: PendingReply, job: JobRecord | None = None) -> None:
        """Send what there is now. ``job``: None where it is to be looked up. What is broken off goes on when
        its lease is over."""
        try:
            if job is None:
                job = (await asyncio.to_thread(self._jobs, [reply.job_id])).get(reply.job_id)
            if job is not None:
                await self._send_all(reply, job)
        except LeaseLost:
            return
        except (BrokerAway, ReplyRefused, ObjectMissing) as error:
            await self.fail(reply, error)
        except StateError as error:
            self._note_state(error)

    async def _send_all(self, reply: PendingReply, job: JobRecord) -> None:
        """Raises LeaseLost, BrokerAway, ReplyRefused, StateError."""
        plan = reply.plan
        if reply.origin.stream:
            if not plan.is_sent:
                await self._send_again(reply, job, plan)
            plan = await self._send_output(reply, job, plan)
        if not job.state.is_final:
            await asyncio.to_thread(self._store.release, reply, self._wall() + self._settings.look_s)
            return
        await self._send_result(reply, job, plan.sequence + 1)
        await asyncio.to_thread(self._store.finish, reply)

    async def _send_result(self, reply: PendingReply, job: JobRecord, sequence: int) -> None:
        """With the answer, unless it was sent while it was written, or is too long."""
        answer, note = None, None
        if not reply.origin.stream:
            answer, note = await self._answer(reply, job)
        body = await asyncio.to_thread(result_body, reply, sequence, job, answer, note)
        try:
            await self._sender.send(reply, sequence, body)
        except ReplyTooLong as error:
            if answer is None:
                raise
            body = result_body(reply, sequence, job, None, f"The answer does not fit into a reply: {error}.")
            await self._sender.send(reply, sequence, body)

    async def _send_again(self, reply: PendingReply, job: JobRecord, plan: ReplyPlan) -> None:
        """What may have arrived or not. Where these bytes are no more, the answer began anew, and that is
        said next."""
        if not plan.stop:
            await self._sender.restart(reply, plan.sequence)
            return
        data = bytearray()
        async for piece in self._answers.read(job, OutputPosition(plan.since, plan.start)):
            if piece.position.since != plan.since:
                return
            data += piece.data
            if len(data) >= plan.stop - plan.start:
                break
        if len(data) >= plan.stop - plan.start:
            part = bytes(data[: plan.stop - plan.start])
            await self._sender.output(reply, plan.sequence, plan.start, part)

    async def _send_output(self, reply: PendingReply, job: JobRecord, plan: ReplyPlan) -> ReplyPlan:
        """Send what there is of the answer behind ``plan``; the plan that was carried out last."""
        plan, waiting = replace(plan, is_sent=True), bytearray()
        async for piece in self._answers.read(job, OutputPosition(plan.since, plan.stop)):
            if piece.position.since != plan.since:
                plan = await self._begin(reply, plan, piece.position.since)
                waiting.clear()
            waiting += piece.data
            plan = await self._send_waiting(reply, plan, waiting, is_last=False)
        return await self._send_waiting(reply, plan, waiting, is_last=job.state.is_final)

    async def _begin(self, reply: PendingReply, plan: ReplyPlan, since: int) -> ReplyPlan:
        """The answer's bytes are of ``since`` from now on."""
        if not plan.sequence:
            return ReplyPlan(0, since)
        plan = ReplyPlan(plan.sequence + 1, since, is_sent=False)
        await self._note(reply, plan)
        await self._sender.restart(reply, plan.sequence)
        return replace(plan, is_sent=True)

    async def _send_waiting(
        self, reply: PendingReply, plan: ReplyPlan, waiting: bytearray, *, is_last: bool
    ) -> ReplyPlan:
        while size := cut(bytes(waiting), is_last=is_last):
            part = bytes(waiting[:size])
            plan = ReplyPlan(plan.sequence + 1, plan.since, plan.stop, plan.stop + size, is_sent=False)
            await self._note(reply, plan)
            await self._sender.output(reply, plan.sequence, plan.start, part)
            del waiting[:size]
        return replace(plan, is_sent=True)

    async def _note(self, reply: PendingReply, plan: ReplyPlan) -> None:
        if not await asyncio.to_thread(self._store.note_plan, reply, plan, self._settings.lease_s):
            raise LeaseLost

    async def _answer(self, reply: PendingReply, job: JobRecord) -> tuple[bytes | None, str | None]:
        """Whole; or why it is left where it is."""
        outcome, most = job.outcome, self._reply_bytes[reply.origin.source]
        if outcome is None or outcome.result is None:
            return b"", None
        if outcome.result_bytes > most:
            return None, f"The answer has {outcome.result_bytes} bytes; replies of this queue hold {most}."
        return b"".join([piece.data async for piece in self._answers.read(job, OutputPosition())]), None

    async def fail(self, reply: PendingReply, error: Exception) -> None:
        """It is tried again later, or given up after a long time. Raises nothing."""
        now_s, settings, origin = self._wall(), self._settings, reply.origin
        since_s = now_s if reply.failing_since_s is None else reply.failing_since_s
        about = {"source": origin.source, "job": reply.job_id, "error": str(error)}
        try:
            if not isinstance(error, BrokerAway) and now_s - since_s >= settings.refused_s:
                if await asyncio.to_thread(self._store.finish, reply):
                    self._metrics.replies(origin.source, "failed")
                    _log.warning("queue_reply_failed", **about)
                return
            most_s = settings.away_s if isinstance(error, BrokerAway) else settings.retry_most_s
            delay_s = min(most_s, settings.retry_s * 2.0 ** min(reply.attempts, 30))
            await asyncio.to_thread(self._store.note_failure, reply, now_s + delay_s, now_s)
        except StateError as state_error:
            self._note_state(state_error)
            return
        self._metrics.replies(origin.source, "retried")
        if not reply.attempts and not isinstance(error, BrokerAway):
            _log.info("queue_reply_retried", **about)

    def _note_state(self, error: StateError | None) -> None:
        """Say once that the store fails, and once that it is back."""
        if error is not None and self._reachable:
            _log.warning("queue_replies_not_read", error=str(error))
        elif error is None and not self._reachable:
            _log.info("queue_replies_read_again")
        self._reachable = error is None
