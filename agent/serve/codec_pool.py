"""Decoding and encoding in processes for the CPU: which one gets what, and what becomes of it when one
ends."""

import asyncio
import itertools
import logging
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from agent.engines.process import EngineEnd, RestartPolicy
from agent.serve.child import Launch, ModelChild, Scratch, one_life
from agent.serve.messages import DecodeOrder, EncodeOrder, JobResult, ModelFacts, ModelFault

_log = logging.getLogger("model")

CODEC = "codec"
AHEAD = 4
"""Orders that a process is given at once, so that it has the next one when it is done with one."""

Order = DecodeOrder | EncodeOrder


@dataclass(slots=True)
class _Job:
    order: Order
    done: "asyncio.Future[JobResult]"
    lost: int = 0
    """How many processes ended while they worked on it."""


@dataclass(slots=True)
class _Member:
    """One process, and what it was given and has not said the result of, oldest first."""

    child: ModelChild | None = None
    jobs: deque[_Job] = field(default_factory=deque)
    timer: asyncio.TimerHandle | None = None
    killed: bool = False
    """It was ended by us, so that none of its jobs is to blame."""


class CodecPool:
    """Carries out orders in ``count`` processes. Belongs to one event loop.

    How many orders there may be is the caller's to bound: one for each request that it has.
    """

    def __init__(
        self,
        launch: Launch,
        scratch: Scratch,
        count: int,
        timeout_s: float,
        on_change: Callable[[], None],
        restarts: RestartPolicy,
    ) -> None:
        self._launch = launch
        self._scratch = scratch
        self._timeout_s = timeout_s
        self._on_change = on_change
        self._restarts = restarts
        self._members = [_Member() for _ in range(count)]
        self._waiting: deque[_Job] = deque()
        self._numbers = itertools.count(1)
        self._tasks: list[asyncio.Task[None]] = []
        self.worked = False
        """A process has been able to work."""
        self.restarted = 0
        self.failure: EngineEnd | None = None
        """How a process ended that could not begin to work, when none ever could."""
        self.reason = "the processes for decode and encode are being started"
        """Why none can work, while that is so."""

    def start(self) -> None:
        self._tasks = [asyncio.create_task(self._keep(each), name="codec") for each in self._members]

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for job in [*self._waiting, *(job for member in self._members for job in member.jobs)]:
            job.done.cancel()

    @property
    def works(self) -> bool:
        return any(member.child is not None for member in self._members)

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    def number(self) -> int:
        """For the next order."""
        return next(self._numbers)

    async def run(self, order: Order) -> JobResult:
        """Its result, whose parcel is the caller's to remove. Cancelled, what has not begun is not done."""
        job = _Job(order, asyncio.get_running_loop().create_future())
        self._waiting.append(job)
        self._assign()
        try:
            return await job.done
        except asyncio.CancelledError:
            if job in self._waiting:
                self._waiting.remove(job)
            elif job.done.done() and not job.done.cancelled():  # its result came just now
                self._scratch.remove(job.done.result().result)
            raise

    def _assign(self) -> None:
        """Give what waits to whoever has least to do."""
        while self._waiting:
            free = [m for m in self._members if m.child is not None and len(m.jobs) < AHEAD]
            if not free:
                return
            member = min(free, key=lambda m: len(m.jobs))
            job = self._waiting.popleft()
            assert member.child is not None
            member.jobs.append(job)
            member.child.send(job.order)
            if len(member.jobs) == 1:
                self._watch(member)

    def _watch(self, member: _Member) -> None:
        """The first of its jobs has so much time from now on."""
        if member.timer is not None:
            member.timer.cancel()
        member.timer = None
        if member.jobs and member.child is not None:
            loop = asyncio.get_running_loop()
            member.timer = loop.call_later(self._timeout_s, self._out_of_time, member)

    def _out_of_time(self, member: _Member) -> None:
        job, child = member.jobs[0], member.child
        hook = "decode" if isinstance(job.order, DecodeOrder) else "encode"
        _log.error("%s did not return within %g s; its process is ended", hook, self._timeout_s)
        member.jobs.popleft()
        late = ModelFault("late", f"{hook} did not return within {self._timeout_s:g} s")
        _settle(job, JobResult(job.order.job, late))
        if child is not None:
            member.killed = True
            child.kill(late.words)

    def _take(self, member: _Member, result: Any) -> None:
        if not isinstance(result, JobResult):
            return
        self._scratch.adopt(result.result)
        if not member.jobs or member.jobs[0].order.job != result.job:
            self._scratch.remove(result.result)
            return
        job = member.jobs.popleft()
        if not _settle(job, result):
            self._scratch.remove(result.result)
        self._watch(member)
        self._assign()

    async def _keep(self, member: _Member) -> None:
        """Have one process after the other work for ``member``."""
        crashes = 0

        def on_ready(child: ModelChild, facts: ModelFacts) -> None:
            member.child, self.worked = child, True
            self._assign()
            self._on_change()

        while True:
            try:
                life = await one_life(
                    self._launch, CODEC, self._scratch, on_ready, lambda said: self._take(member, said)
                )
            finally:
                self._lost(member)
            self.restarted += 1
            crashes = 1 if life.served_s >= self._restarts.healthy_s else crashes + 1
            delay_s = self._restarts.delay_s(crashes, served=life.served_s > 0)
            self.reason = life.end.reason
            _log.error("a process for decode and encode: %s (again in %g s)", life.end.reason, delay_s)
            if life.served_s == 0 and not self.works:
                self._give_up_waiting()
                self.failure = None if self.worked else life.end
            self._on_change()
            await asyncio.sleep(delay_s)

    def _give_up_waiting(self) -> None:
        """No process comes to work: what waits is not to wait for ever."""
        while self._waiting:
            job = self._waiting.popleft()
            _settle(job, JobResult(job.order.job, ModelFault("unready", self.reason)))

    def _lost(self, member: _Member) -> None:
        """The process has ended. What it worked on is tried once more; what it had not begun waits again."""
        killed, member.child, member.killed = member.killed, None, False
        if member.timer is not None:
            member.timer.cancel()
        jobs, member.jobs = list(member.jobs), deque()
        if jobs and not killed:
            jobs[0].lost += 1
        for job in reversed(jobs):
            hook = "decode" if isinstance(job.order, DecodeOrder) else "encode"
            if job.lost > 1:
                fault = ModelFault("crashed", f"{hook} ended its process twice")
                _settle(job, JobResult(job.order.job, fault))
            elif not job.done.done():
                self._waiting.appendleft(job)
        self._assign()


def _settle(job: _Job, result: JobResult) -> bool:
    """Whether somebody waited for it."""
    if job.done.done():
        return False
    job.done.set_result(result)
    return True
