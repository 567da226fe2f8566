"""Lines of the results of a batch: those of its jobs that have ended, whether the batch has or not."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Sequence

from gateway.domain.batches import BatchRecord, BatchState, BatchUsage
from gateway.domain.files import MIB
from gateway.domain.jobs import JobRecord
from gateway.domain.line_ranges import LineRanges
from gateway.jobs.batches.results import (
    ANSWER_TAIL,
    RESULT_GONE,
    RESULT_TOO_LONG,
    answer_body,
    answer_head,
    ending_error,
    error_line,
)
from gateway.jobs.objects import ObjectOpener
from gateway.storage.errors import ObjectMissing
from gateway.storage.jobs import JobStore

MOST_RESULT_BYTES = 64 * MIB
"""A longer answer does not become a line."""
PAGE_LINES = 200
"""Jobs that are read from the store at once."""
_HERE_BYTES = 16 * 1024
"""Answers up to so long are read without a thread."""
_READ_AT_ONCE, _TOGETHER_BYTES = 16, MIB
"""Answers that are read side by side, and how long they may be then."""


class UsageTally:
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


class ResultLines:
    """Makes lines of jobs that have ended. Belongs to the event loop's thread."""

    def __init__(self, objects: ObjectOpener) -> None:
        self._objects = objects

    async def of(self, jobs: Sequence[JobRecord], tally: UsageTally, *, late: bool) -> list[bytes]:
        """One line for each of as many as :func:`together` gives. ``late``: what was not executed was so
        because its batch ran out. Raises StateError."""
        return await asyncio.gather(*(self._line(job, tally, late=late) for job in jobs))

    async def _line(self, job: JobRecord, tally: UsageTally, *, late: bool) -> bytes:
        outcome = job.outcome
        if outcome is None or outcome.status is None or outcome.result is None:
            return error_line(job, ending_error(job, late=late))
        if outcome.result_bytes > MOST_RESULT_BYTES:
            return error_line(job, RESULT_TOO_LONG)
        try:
            content = await (await self._objects()).read_bytes(outcome.result, MOST_RESULT_BYTES)
        except ObjectMissing:
            return error_line(job, RESULT_GONE)
        if len(content) <= _HERE_BYTES:
            body, usage = answer_body(content)
        else:
            body, usage = await asyncio.to_thread(answer_body, content)
        if usage is not None:
            tally.add(usage)
        return answer_head(job, outcome.status) + body + ANSWER_TAIL


def together(jobs: Sequence[JobRecord]) -> Iterator[Sequence[JobRecord]]:
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


class FinishedLines:
    """What there is of a batch's results by now. Belongs to the event loop's thread."""

    def __init__(self, jobs: JobStore, lines: ResultLines, wall: Callable[[], float]) -> None:
        self._jobs = jobs
        self._lines = lines
        self._wall = wall

    async def of(self, batch: BatchRecord, ranges: LineRanges) -> AsyncIterator[bytes]:
        """Those of the lines that have ended, in their order: as they are in the output file and the error
        file of a batch that is over. Raises StateError."""
        cancelled = batch.state in (BatchState.CANCELLING, BatchState.CANCELLED)
        late = not cancelled and self._wall() >= batch.new.expires_s
        line_id = batch.new.line_id
        spans = [(line_id(first), None if last is None else line_id(last)) for first, last in ranges]
        tally, after = UsageTally(), 0
        while True:
            page = (batch.id, spans, after, PAGE_LINES)
            jobs = await asyncio.to_thread(self._jobs.ended_within, *page)
            for some in together(jobs):
                for line in await self._lines.of(some, tally, late=late):
                    yield line
            if len(jobs) < PAGE_LINES:
                return
            after = jobs[-1].number
