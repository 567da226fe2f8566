"""The jobs that this process runs, and how long they are surely its own."""

import asyncio
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Any

from gateway.domain.jobs import JobLease, JobNote, JobRecord
from shared.protocol.progress import Progress, newest


class RunEnd(Enum):
    """Why a run is ended before its engine has answered."""

    STOPPED = auto()
    """This process stops: another one goes on with the job."""
    CANCELLED = auto()
    """Somebody wants the job to end."""
    EXPIRED = auto()
    """Its deadline has come."""
    LOST = auto()
    """It is another run's by now."""


@dataclass(slots=True, eq=False)
class RunningJob:
    """A job that was claimed."""

    job: JobRecord
    answering: bool = False
    """Its engine has begun to answer: it takes no room in the queue."""
    progress: Progress | None = None
    """How far its engine is, where it says so."""
    noted: Progress | None = None
    """What of it the store knows."""
    end: RunEnd | None = None
    task: "asyncio.Task[Any] | None" = field(default=None, repr=False)
    """In which an engine answers it; None before and after."""

    @property
    def lease(self) -> JobLease:
        assert self.job.lease is not None
        return self.job.lease

    @property
    def given_up(self) -> bool:
        """Nothing of it is to be waited for any more."""
        return self.end is RunEnd.LOST or self.end is RunEnd.STOPPED

    def tell(self, progress: Progress) -> None:
        """Its engine is so far. A preview stays the newest until there is a newer one."""
        self.progress = newest(self.progress, progress)

    def note(self) -> JobNote | None:
        """What the store is to be told; None: it knows."""
        said, known = self.progress, self.noted
        if said is None or said == known:
            return None
        if known is not None and said.preview is known.preview:
            said = Progress(said.fraction, said.text)
        return JobNote(self.job.id, self.lease, said)

    def stop(self, end: RunEnd) -> None:
        """End the run because of ``end``, unless there was a reason before."""
        if self.end is None or end is RunEnd.LOST:
            self.end = end
            if self.task is not None:
                self.task.cancel()


class RunningJobs:
    """By id. Belongs to the event loop's thread."""

    def __init__(self, clock: Callable[[], float], lease_s: float) -> None:
        """``clock`` goes on while the host sleeps."""
        self._clock = clock
        self._lease_s = lease_s
        self._jobs: dict[str, RunningJob] = {}
        self._over: set[str] = set()
        """Jobs that run no more here, of which the store may have previews."""
        self._renewed_s = clock()
        self._none: asyncio.Event | None = None
        """Made when somebody waits until none is left."""

    def __len__(self) -> int:
        return len(self._jobs)

    def __iter__(self) -> Iterator[RunningJob]:
        return iter(list(self._jobs.values()))

    @property
    def is_busy(self) -> bool:
        """There are any, or the store has something to forget of those that there were."""
        return bool(self._jobs or self._over)

    def get(self, job_id: str) -> RunningJob | None:
        return self._jobs.get(job_id)

    def add(self, running: RunningJob, claimed_s: float) -> None:
        """It was asked for at ``claimed_s``. An earlier run of it here has lost its lease, and is ended."""
        if not self._jobs:
            self._renewed_s = claimed_s
        earlier = self._jobs.get(running.job.id)
        if earlier is not None:
            earlier.stop(RunEnd.LOST)
        self._jobs[running.job.id] = running

    def remove(self, running: RunningJob) -> None:
        if self._jobs.get(running.job.id) is running:
            del self._jobs[running.job.id]
            if running.noted is not None and running.noted.preview is not None:
                self._over.add(running.job.id)
        if self._none is not None and not self._jobs:
            self._none.set()

    async def wait_none(self) -> None:
        """Returns when no job runs here."""
        while self._jobs:
            self._none = asyncio.Event()
            await self._none.wait()

    def pending(self, model: str) -> int:
        """How many of a model are not answered yet."""
        return sum(each.job.new.model == model and not each.answering for each in self._jobs.values())

    def of_tenant(self) -> Mapping[str, int]:
        found: dict[str, int] = {}
        for each in self._jobs.values():
            found[each.job.new.tenant] = found.get(each.job.new.tenant, 0) + 1
        return found

    @property
    def leases(self) -> dict[str, JobLease]:
        return {name: each.lease for name, each in self._jobs.items()}

    async def note_progress(self, note: Callable[[Collection[JobNote], Collection[str]], object]) -> None:
        """Have ``note``, which may block, tell the store how far those are whose engines have said
        more since, and which are over. Raises what it raises."""
        told = [(each, each.progress, said) for each in self if (said := each.note()) is not None]
        over = self._over - self._jobs.keys()
        if told or over:
            await asyncio.to_thread(note, [said for _, _, said in told], over)
            for running, progress, _ in told:
                running.noted = progress
            self._over -= over

    def renewed(self, asked_s: float) -> None:
        """The store has renewed all leases that were not lost, as was asked of it at ``asked_s``."""
        self._renewed_s = asked_s

    async def keep_time(self, wall: Callable[[], float], look_s: float) -> None:
        """Stop those whose time is up, whatever the store does meanwhile, until this is cancelled."""
        while True:
            await asyncio.sleep(min(look_s, self._lease_s / 3.0))
            self.stop_expired(wall())
            self.stop_overdue()

    def stop_overdue(self) -> None:
        """The store could not be asked for so long that others may run these jobs by now."""
        if self._jobs and self._clock() - self._renewed_s > self._lease_s:
            for each in self:
                each.stop(RunEnd.LOST)

    def stop_expired(self, now_s: float) -> None:
        """Their deadlines have come. ``now_s`` is in seconds since 1970."""
        for each in self:
            deadline_s = each.job.new.deadline_s
            if deadline_s is not None and now_s >= deadline_s:
                each.stop(RunEnd.EXPIRED)
