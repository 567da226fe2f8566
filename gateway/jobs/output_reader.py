"""Reads answers of jobs, whole or while they are written."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import orjson

from gateway.domain.jobs import JobRecord
from gateway.jobs.object_names import START, OutputPosition, output_numbers, output_prefix, result_since
from gateway.jobs.output import AnswerHead, OutputProgress
from gateway.storage.errors import ObjectMissing

if TYPE_CHECKING:  # its library is loaded at the first use
    from gateway.storage.objects import ObjectStore

_HEAD_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class OutputPiece:
    """Bytes of a job's answer. Where ``position.since`` is not what was asked for, the job started over, and
    these are the first bytes of its new answer."""

    position: OutputPosition
    data: bytes

    @property
    def next(self) -> OutputPosition:
        """Where to read on."""
        return OutputPosition(self.position.since, self.position.offset + len(self.data))


class OutputReader:
    """Reads answers of jobs, whole or while they are written. Methods raise StateError."""

    def __init__(self, objects: "Callable[[], Awaitable[ObjectStore]]") -> None:
        """``objects`` gives the object store, as :class:`gateway.jobs.objects.ObjectOpener` does."""
        self._objects = objects

    async def progress(self, job_id: str) -> OutputProgress | None:
        """None: nothing was written yet, or the job has ended."""
        objects = await self._objects()
        found: dict[int, dict[int, tuple[str, int]]] = {}
        for listed in await objects.listed(output_prefix(job_id)):
            numbers = output_numbers(listed.name)
            if numbers is not None:
                found.setdefault(numbers[0], {})[numbers[1]] = (listed.name, listed.size_bytes)
        for generation in sorted(found, reverse=True):
            pieces = found[generation]
            if 0 not in pieces:  # its first bytes are being copied, or it died then
                continue
            try:
                said = orjson.loads(await objects.read_bytes(pieces[0][0], _HEAD_BYTES))
            except ObjectMissing:
                continue
            in_order = tuple(pieces[each] for each in range(1, len(pieces)) if each in pieces)
            size_bytes = sum(size for _, size in in_order)
            head = AnswerHead(**said["head"] | {"headers": tuple(map(tuple, said["head"]["headers"]))})
            accumulated = said.get("accumulated") is True
            return OutputProgress(generation, said["since"], head, size_bytes, in_order, accumulated)
        return None

    async def read(self, job: JobRecord, position: OutputPosition = START) -> AsyncIterator[OutputPiece]:
        """The bytes that there are now, from ``position`` on: of the result where the job has ended, else of
        what is written of it. Another ``since`` than the job's reads from its first byte."""
        if job.state.is_final:
            async for piece in self._read_result(job, position):
                yield piece
            return
        found = await self.progress(job.id)
        if found is None or found.accumulated:
            return
        offset = position.offset if position.since == found.since else 0
        begins = 0
        objects = await self._objects()
        for name, size_bytes in found.pieces:
            if begins + size_bytes > offset:
                async for data in objects.read(name, max(0, offset - begins)):
                    yield OutputPiece(OutputPosition(found.since, offset), data)
                    offset += len(data)
            begins += size_bytes

    async def follow(
        self,
        get_job: Callable[[], Awaitable[JobRecord]],
        position: OutputPosition = START,
        poll_s: float = 0.5,
    ) -> AsyncIterator[OutputPiece]:
        """The bytes from ``position`` on as they are written, until the job has ended and all of its result
        is read. A job that ends without a result ends this."""
        while True:
            job = await get_job()
            try:
                async for piece in self.read(job, position):
                    position = piece.next
                    yield piece
            except ObjectMissing:  # another run took over, or the job ended: there is a new name for it
                if job.state.is_final:
                    raise
            if job.state.is_final:
                return
            await asyncio.sleep(poll_s)

    async def _read_result(self, job: JobRecord, position: OutputPosition) -> AsyncIterator[OutputPiece]:
        outcome = job.outcome
        if outcome is None or outcome.result is None:
            return
        since = result_since(outcome.result)
        offset = position.offset if position.since == since else 0
        if offset >= outcome.result_bytes:
            return
        async for data in (await self._objects()).read(outcome.result, offset):
            yield OutputPiece(OutputPosition(since, offset), data)
            offset += len(data)
