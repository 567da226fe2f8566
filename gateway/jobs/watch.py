"""Tells whoever waits that a job has changed, whichever process changed it.

All who wait in this process share one query, which runs while anybody waits. No process tells another: a
change is seen within the interval.
"""

import asyncio
from collections.abc import Callable, Collection, Mapping

import structlog

from gateway.domain.jobs import JobRecord
from gateway.storage.errors import StateError, UnknownRecord

_log = structlog.get_logger(__name__)

INTERVAL_S = 0.25


class JobWatch:
    """Belongs to the event loop's thread."""

    def __init__(
        self, read: Callable[[Collection[str]], Mapping[str, JobRecord]], interval_s: float = INTERVAL_S
    ) -> None:
        """``read`` gives jobs by their ids; it is called in a thread and raises StateError."""
        self._read = read
        self._interval_s = interval_s
        self._waiting: dict[asyncio.Future[JobRecord], JobRecord] = {}
        self._task: asyncio.Task[None] | None = None

    async def changed(self, job: JobRecord) -> JobRecord:
        """The job as soon as it is another than ``job``. Raises UnknownRecord when it is no more."""
        future: asyncio.Future[JobRecord] = asyncio.get_running_loop().create_future()
        self._waiting[future] = job
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._look())
        try:
            return await future
        finally:
            self._waiting.pop(future, None)

    async def ended(self, job: JobRecord, within_s: float) -> JobRecord:
        """The job once it has ended, or as it is after ``within_s``. Raises UnknownRecord."""
        try:
            async with asyncio.timeout(within_s):
                while not job.state.is_final:
                    job = await self.changed(job)
        except TimeoutError:
            pass
        return job

    async def _look(self) -> None:
        while self._waiting:
            ids = {job.id for job in self._waiting.values()}
            try:
                found = await asyncio.to_thread(self._read, ids)
            except StateError as error:
                _log.warning("jobs_not_watched", jobs=len(ids), error=str(error))
            else:
                self._tell(found, ids)
            await asyncio.sleep(self._interval_s)

    def _tell(self, found: Mapping[str, JobRecord], asked: Collection[str]) -> None:
        for future, known in list(self._waiting.items()):
            if future.done() or known.id not in asked:
                continue
            job = found.get(known.id)
            if job is None:
                future.set_exception(UnknownRecord(f"there is no job {known.id}"))
            elif job != known:
                future.set_result(job)
