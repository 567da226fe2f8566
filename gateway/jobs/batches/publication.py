"""Writes the answers of a batch into its files, in the order of its lines."""

import asyncio
import secrets
from collections.abc import AsyncIterator, Callable, Collection
from dataclasses import dataclass

from sqlalchemy import Connection

from gateway.domain.batches import BatchCounts, BatchRecord, BatchState, BatchUsage
from gateway.domain.files import BATCH_KEPT_S, FilePurpose, NewFile
from gateway.domain.jobs import FINAL, JobRecord, JobState
from gateway.jobs.batches.result_lines import PAGE_LINES, ResultLines, UsageTally, together
from gateway.jobs.batches.submission import Renew
from gateway.jobs.files import FileService
from gateway.storage.files import FileStore
from gateway.storage.jobs import JobStore
from gateway.storage.objects import StoredObject

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
        self._results = ResultLines(files.objects)

    async def write(self, batch: BatchRecord, renew: Renew) -> Publication:
        """Both files. Raises StateError, BatchLost; nothing is left behind then."""
        states = await asyncio.to_thread(lambda: self._jobs.count(group=batch.id))
        done = states.get(JobState.SUCCEEDED, 0)
        late = batch.state is not BatchState.CANCELLING and self._files.wall() >= batch.new.expires_s
        tally = UsageTally()
        output = errors = None
        try:
            if done:
                lines = self._lines(batch, (JobState.SUCCEEDED,), tally, renew, late=late)
                output = await self._write(batch, "output", lines)
            if batch.total > done:
                lines = self._lines(batch, _NOT_SUCCEEDED, UsageTally(), renew, late=late)
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
        tally: UsageTally,
        renew: Renew,
        *,
        late: bool,
    ) -> AsyncIterator[bytes]:
        after: str | None = None
        while True:
            jobs = await asyncio.to_thread(self._page, batch.id, states, after)
            for some in together(jobs):
                for line in await self._results.of(some, tally, late=late):
                    yield line
                await renew()
            if len(jobs) < PAGE_LINES:
                return
            after = jobs[-1].id

    def _page(self, group: str, states: Collection[JobState], after: str | None) -> tuple[JobRecord, ...]:
        return self._jobs.list(group=group, states=states, after=after, limit=PAGE_LINES, newest_first=False)
