"""Sends answers while they are written, by the process that runs their jobs: each token as it comes.

The store is told how far an answer was sent when a run begins, when its reply's lease is renewed and at its
end, and not for each token. Before the first token of a run, numbers for replies are reserved there. Should
this process die, whoever runs the job next goes on behind them: its first reply says by its ``offset`` from
where on the answer is void, as what was sent last may never have reached the store.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import replace
from typing import Protocol

import structlog

from gateway.domain.jobs import JobRecord
from gateway.domain.queues import PendingReply, ReplyPlan
from gateway.jobs.live_answer import LiveAnswer
from gateway.jobs.object_names import OutputPosition
from gateway.jobs.output_reader import OutputPiece
from gateway.jobs.queues.reply_bodies import cut
from gateway.jobs.queues.reply_sender import LeaseLost, ReplySender
from gateway.jobs.queues.source import BrokerAway, ReplyRefused
from gateway.storage.errors import ObjectMissing, StateError
from gateway.storage.queue_jobs import QueueJobStore

_log = structlog.get_logger(__name__)

STREAM_S = 0.02
"""For so long bytes are gathered into one reply, unless the settings say otherwise."""
RESERVED = 100_000
"""Numbers of replies that a process may use until it says again how far it is; far more than it can send."""
BEHIND_S = 0.5
"""Between two looks at what is stored of an answer, for a reply that is behind what is held of it."""


class AnswerReader(Protocol):
    """See :class:`gateway.jobs.output_reader.OutputReader`."""

    def read(self, job: JobRecord, position: OutputPosition) -> AsyncIterator[OutputPiece]: ...


class ReplyRest(Protocol):
    """See :class:`gateway.jobs.queues.replies.ReplyDeliverer`."""

    async def attend(self, reply: PendingReply, job: JobRecord | None = None) -> None: ...

    async def fail(self, reply: PendingReply, error: Exception) -> None: ...


class LiveReplies:
    """Of one process. Belongs to the event loop's thread."""

    def __init__(
        self,
        sources: tuple[str, ...],
        store: QueueJobStore,
        answers: AnswerReader,
        sender: ReplySender,
        rest: ReplyRest,
        lease_s: float,
        stream_s: Mapping[str, float],
        process: str | None = None,
        *,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        """``rest`` sends what is left when an answer is whole, and notes what failed. ``stream_s``: for how
        long bytes are gathered into a reply, by source."""
        self._sources = sources
        self._process = process
        self._store = store
        self._answers = answers
        self._sender = sender
        self._rest = rest
        self._lease_s = lease_s
        self._stream_s = stream_s
        self._sleep = sleep
        self._lives: dict[str, LiveAnswer] = {}
        """Answers of the runs of this process, by job: bounded by its runs."""
        self._begun: dict[str, LiveAnswer] = {}
        """Those of which nobody knows yet whether a message asked for them."""
        self._given: list[tuple[PendingReply, LiveAnswer]] = []
        """Replies to go on with."""
        self._woken = asyncio.Event()
        self._following: dict[int, _FollowedReply] = {}
        """By the number of the reply: the latest of each."""

    def follow(self, job: JobRecord) -> LiveAnswer:
        """A run of ``job`` begins in this process (:data:`gateway.jobs.live_answer.FollowRun`)."""
        live = self._lives[job.id] = self._begun[job.id] = LiveAnswer(job, self._forget)
        self._woken.set()
        return live

    def go_on(self, reply: PendingReply) -> bool:
        """Take a reply that is ours, if its job runs here."""
        live = self._lives.get(reply.job_id)
        if live is None or reply.job_id in self._begun or not reply.origin.stream:
            return False
        self._given.append((reply, live))
        self._woken.set()
        return True

    async def run(self) -> None:
        """Send until this is cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._keep_leases())
            while True:
                await self._woken.wait()
                self._woken.clear()
                for reply, live in [*self._take_given(), *await self._take_over()]:
                    tasks.create_task(self._attend(reply, live))

    def _forget(self, live: LiveAnswer) -> None:
        for known in (self._lives, self._begun):
            if known.get(live.job.id) is live:
                del known[live.job.id]

    def _take_given(self) -> list[tuple[PendingReply, LiveAnswer]]:
        given, self._given = self._given, []
        return given

    async def _take_over(self) -> list[tuple[PendingReply, LiveAnswer]]:
        """Replies of the runs that have begun: one query for all of them."""
        begun, self._begun = self._begun, {}
        if not begun:
            return []
        take = self._store.take_over
        try:
            found = await asyncio.to_thread(take, tuple(begun), self._sources, self._lease_s, self._process)
        except StateError as error:  # found when the store is looked at, once it answers again
            _log.warning("queue_replies_not_taken", jobs=len(begun), error=str(error))
            return []
        ours = [(reply, begun.pop(reply.job_id)) for reply in found]
        for live in begun.values():
            live.decline()
        return ours

    async def _attend(self, reply: PendingReply, live: LiveAnswer) -> None:
        followed = _FollowedReply(reply, live, self._sender, self._answers, self._note, self._sleep)
        followed.stream_s = self._stream_s.get(reply.origin.source, STREAM_S)
        self._following[reply.number] = followed
        try:
            try:
                await followed.send()
            finally:
                if self._following.get(reply.number) is followed:
                    del self._following[reply.number]
            plan = followed.plan_at_end
            await self._note([followed.reply], [plan])
            await self._rest.attend(replace(followed.reply, plan=plan))
        except LeaseLost:
            return
        except (BrokerAway, ReplyRefused, StateError) as error:
            await self._fail(followed, error)

    async def _fail(self, followed: "_FollowedReply", error: Exception) -> None:
        try:
            await self._note([followed.reply], [followed.plan_for_another])
        except LeaseLost:
            return
        except StateError:  # what was noted last holds
            pass
        await self._rest.fail(followed.reply, error)

    async def _keep_leases(self) -> None:
        """Say how far all of them are, in one transaction."""
        while True:
            await asyncio.sleep(self._lease_s / 3)
            each = list(self._following.values())
            if not each:
                continue
            plans = [(one.reply, one.reserve()) for one in each]
            try:
                lost = await asyncio.to_thread(self._store.note_plans, plans, self._lease_s)
            except StateError as error:
                _log.warning("queue_replies_not_renewed", replies=len(each), error=str(error))
                continue
            for one in each:
                if one.reply.number in lost:
                    one.lost = True

    async def _note(self, replies: list[PendingReply], plans: list[ReplyPlan]) -> None:
        """Raises LeaseLost, StateError."""
        noted = list(zip(replies, plans, strict=True))
        if await asyncio.to_thread(self._store.note_plans, noted, self._lease_s):
            raise LeaseLost


class _FollowedReply:
    """One reply, while its job's answer is written here."""

    stream_s = STREAM_S

    def __init__(
        self,
        reply: PendingReply,
        live: LiveAnswer,
        sender: ReplySender,
        answers: AnswerReader,
        note: Callable[[list[PendingReply], list[ReplyPlan]], Awaitable[None]],
        sleep: Callable[[float], Awaitable[None]],
    ) -> None:
        self.reply = reply
        self.lost = False
        self._live = live
        self._sender = sender
        self._answers = answers
        self._note = note
        self._sleep = sleep
        self._sequence = reply.plan.sequence
        self._since = reply.plan.since
        self._offset = self._certain = reply.plan.sent_offset
        """How far it was sent, and how far of that the store has the answer, too."""
        self._ends: deque[int] = deque()
        """Where replies end of which the store has nothing yet."""
        self._has_begun = False

    @property
    def plan_for_another(self) -> ReplyPlan:
        """What holds for whoever goes on, if nothing more is sent from here."""
        self._note_stored()
        if not self._has_begun:
            return self.reply.plan
        return ReplyPlan(self._sequence + 1, self._since, self._certain, self._certain, is_sent=False)

    @property
    def plan_at_end(self) -> ReplyPlan:
        """What was sent, now that the run is over."""
        if not self._has_begun:
            return self.reply.plan
        return ReplyPlan(self._sequence, self._since, self._offset, self._offset)

    def reserve(self) -> ReplyPlan:
        """What holds should this process die while it goes on."""
        if not self._has_begun:
            return self.reply.plan
        return replace(self.plan_for_another, sequence=self._sequence + RESERVED)

    def _note_stored(self) -> None:
        while self._ends and self._ends[0] <= self._live.stored_offset:
            self._certain = self._ends.popleft()

    async def send(self) -> None:
        """Until the run is over. Raises LeaseLost, BrokerAway, ReplyRefused, StateError, ObjectMissing."""
        live = self._live
        while live.since is None and not live.ended:
            await live.changed()
        if live.since is None:
            return
        await self._begin(live.since)
        while not self.lost:
            data = live.after(self._offset)
            if data is None:
                if live.ended:
                    return
                await self._catch_up()
            elif size := cut(data, is_last=False):
                await self._send(data[:size])
            elif live.ended:
                return
            else:
                await live.changed()
                if not live.ended:
                    await self._sleep(self.stream_s)
        raise LeaseLost

    async def _begin(self, since: int) -> None:
        """Reserve numbers, and say where the answer goes on, if it is not where the reader believes."""
        live, plan = self._live, self.reply.plan
        self._has_begun = True
        goes_on = plan.since == since
        offset = self._offset
        if goes_on:
            reached = live.begin_offset if live.sent_offset is None else live.sent_offset
            self._offset = self._certain = min(offset, max(reached, live.begin_offset))
        else:
            self._since, self._offset, self._certain = since, 0, 0
        await self._note([self.reply], [self.reserve()])
        if goes_on and (not plan.is_sent or self._offset < offset):
            await self._send(b"")
        elif not goes_on and plan.sequence:
            self._sequence += 1
            await self._sender.restart(self.reply, self._sequence)

    async def _send(self, data: bytes) -> None:
        self._sequence += 1
        await self._sender.output(self.reply, self._sequence, self._offset, data)
        self._offset += len(data)
        self._live.sent_offset = self._offset
        self._ends.append(self._offset)
        self._note_stored()
        if self.reply.attempts:
            self.reply = replace(self.reply, attempts=0, failing_since_s=None)

    async def _catch_up(self) -> None:
        """Send what is stored of the answer: what is held of it begins later."""
        waiting, found = bytearray(), False
        try:
            async for piece in self._answers.read(self._live.job, OutputPosition(self._since, self._offset)):
                if piece.position.since != self._since:
                    break
                waiting += piece.data
                while size := cut(bytes(waiting), is_last=False):
                    await self._send(bytes(waiting[:size]))
                    del waiting[:size]
                    found = True
        except ObjectMissing:
            if self._live.ended:
                return
        if not found:
            await self._sleep(BEHIND_S)
