"""Writes the answers of a batch into its files, in the order of its lines."""

import asyncio
import secrets
from collections.abc import AsyncIterator, Callable, Collection, Iterator, Sequence
from dataclasses import dataclass

from sqlalchemy import Connection

from gateway.domain.batches import BatchCounts, BatchRecord, BatchState, BatchUsage
from gateway.domain.files import BATCH_KEPT_S, MIB, FilePurpose, NewFile
from gateway.domain.jobs import FINAL, JobRecord, JobState
from gateway.jobs.batches.results import (
    ANSWER_TAIL,
    RESULT_GONE,
    RESULT_TOO_LONG,
    answer_body,
    answer_head,
    ending_error,
    error_line,
)
from gateway.jobs.batches.submission import Renew
from gateway.jobs.files import FileService
from gateway.storage.errors import ObjectMissing
from gateway.storage.files import FileStore
from gateway.storage.jobs import JobStore
from gateway.storage.objects import StoredObject

MOST_RESULT_BYTES = 64 * MIB
"""A longer answer does not become a line."""
_HERE_BYTES = 16 * 1024
"""Answers up to so long are read without a thread."""
_AT_ONCE = 200
_READ_AT_ONCE, _TOGETHER_BYTES = 16, MIB
"""Answers that are read side by side, and how long they may be then."""
_NOT_SUCCEEDED = FINAL - {JobState.SUCCEEDED}


@dataclass(frozen=True, slots=True)
class Publication:
    """The files of a batch, written and not yet there for anybody."""

    state: BatchState
    counts: BatchCounts
    usage: BatchUsage
    output: tuple[NewFile, StoredObject] | None
    errors: tuple[NewFile, StoredObject] | None


class BatchPublisher:
    """Belongs to the event loop's thread."""

    def __init__(self, jobs: JobStore, store: FileStore, files: FileService) -> None:
        self._jobs = jobs
        self._store = store
        self._files = files

    async def write(self, batch: BatchRecord, renew: Renew) -> Publication:
        """Both files. Raises StateError, BatchLost; nothing is left behind then."""
        states = await asyncio.to_thread(lambda: self._jobs.count(group=batch.id))
        done = states.get(JobState.SUCCEEDED, 0)
        late = batch.state is not BatchState.CANCELLING and self._files.wall() >= batch.new.expires_s
        tally = _Tally()
        output = errors = None
        try:
            if done:
                lines = self._lines(batch, (JobState.SUCCEEDED,), tally, renew, late=late)
                output = await self._write(batch, "output", lines)
            if batch.total > done:
                lines = self._lines(batch, _NOT_SUCCEEDED, _Tally(), renew, late=late)
                errors = await self._write(batch, "error", lines)
        except BaseException:
            await self.discard(output)
            raise
        ran_out = states.get(JobState.EXPIRED, 0) + (late and states.get(JobState.CANCELLED, 0))
        if batch.state is BatchState.CANCELLING:
            state = BatchState.CANCELLED
        else:
            state = BatchState.EXPIRED if ran_out else BatchState.COMPLETED
        counts = BatchCounts(batch.total, done, batch.total - done)
        return Publication(state, counts, tally.usage, output, errors)

    def publish(self, made: Publication) -> Callable[[Connection], None]:
        """Makes them files, in a transaction."""

        def finish(connection: Connection) -> None:
            for each in (made.output, made.errors):
                if each is not None:
                    file, stored = each
                    self._store.finish_in(connection, file, stored.size_bytes, stored.sha256)

        return finish

    async def discard(self, *written: tuple[NewFile, StoredObject] | None) -> None:
        """What was written is not to be published."""
        for each in written:
            if each is not None:
                await asyncio.shield(self._files.discard(each[0].id))

    async def _write(
        self, batch: BatchRecord, what: str, lines: AsyncIterator[bytes]
    ) -> tuple[NewFile, StoredObject]:
        new, now_s = batch.new, self._files.wall()
        kept_s = BATCH_KEPT_S if new.output_kept_s is None else new.output_kept_s
        file = NewFile(
            f"file-{secrets.token_hex(12)}",
            new.tenant,
            new.key_id,
            f"{new.id}_{what}.jsonl",
            FilePurpose.BATCH_OUTPUT,
            now_s,
            now_s + kept_s,
        )
        # what was worked for is kept, whatever else the tenant keeps
        await asyncio.to_thread(self._store.begin, file, 0, None)
        try:
            return file, await (await self._files.objects()).put(file.object_name, lines)
        except BaseException:
            await asyncio.shield(self._files.discard(file.id))
            raise

    async def _lines(
        self,
        batch: BatchRecord,
        states: Collection[JobState],
        tally: "_Tally",
        renew: Renew,
        *,
        late: bool,
    ) -> AsyncIterator[bytes]:
        after: str | None = None
        while True:
            jobs = await asyncio.to_thread(self._page, batch.id, states, after)
            for some in _together(jobs):
                for line in await asyncio.gather(*(self._line(job, tally, late=late) for job in some)):
                    yield line
                await renew()
            if len(jobs) < _AT_ONCE:
                return
            after = jobs[-1].id

    def _page(self, group: str, states: Collection[JobState], after: str | None) -> tuple[JobRecord, ...]:
        return self._jobs.list(group=group, states=states, after=after, limit=_AT_ONCE, newest_first=False)

    async def _line(self, job: JobRecord, tally: "_Tally", *, late: bool) -> bytes:
        outcome = job.outcome
        if outcome is None or outcome.status is None or outcome.result is None:
            return error_line(job, ending_error(job, late=late))
        if outcome.result_bytes > MOST_RESULT_BYTES:
            return error_line(job, RESULT_TOO_LONG)
        try:
            content = await (await self._files.objects()).read_bytes(outcome.result, MOST_RESULT_BYTES)
        except ObjectMissing:
            return error_line(job, RESULT_GONE)
        if len(content) <= _HERE_BYTES:
            body, usage = answer_body(content)
        else:
            body, usage = await asyncio.to_thread(answer_body, content)
        if usage is not None:
            tally.add(usage)
        return answer_head(job, outcome.status) + body + ANSWER_TAIL


def _together(jobs: Sequence[JobRecord]) -> Iterator[Sequence[JobRecord]]:
    """The jobs, in their order, as many at once as may be in memory together."""
    some: list[JobRecord] = []
    held_bytes = 0
    for job in jobs:
        size_bytes = 0 if job.outcome is None else job.outcome.result_bytes
        if some and (held_bytes + size_bytes > _TOGETHER_BYTES or len(some) == _READ_AT_ONCE):
            yield some
            some, held_bytes = [], 0
        some.append(job)
        held_bytes += size_bytes
    if some:
        yield some


class _Tally:
    """Sums usage."""

    def __init__(self) -> None:
        self.usage = BatchUsage()

    def add(self, more: BatchUsage) -> None:
        had = self.usage
        self.usage = BatchUsage(
            had.input_tokens + more.input_tokens,
            had.output_tokens + more.output_tokens,
            had.cached_tokens + more.cached_tokens,
            had.reasoning_tokens + more.reasoning_tokens,
        )
