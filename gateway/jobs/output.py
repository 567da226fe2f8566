"""The answer of a job while it is written (:class:`PartialOutput`) and as it is read (:class:`OutputReader`).

An object store cannot append: what an engine sends is kept in pieces of a second's bytes or 64 KiB, whichever
is first (:mod:`gateway.jobs.object_names`). A short answer that is over within the second is written once, as
the result.
"""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import orjson
import structlog

from gateway.domain.jobs import JobRecord
from gateway.jobs.object_names import (
    START,
    OutputPosition,
    output_name,
    output_numbers,
    output_prefix,
    result_name,
    result_since,
)
from gateway.storage.errors import ObjectMissing, ObjectStorageError, StateError

if TYPE_CHECKING:  # its library is loaded at the first use
    from gateway.storage.objects import ObjectStore

_log = structlog.get_logger(__name__)

_HEAD_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class OutputSettings:
    """How partial output is written."""

    interval_s: float = 1.0
    """What has waited so long is written."""
    piece_bytes: int = 64 * 1024
    """So much is written at once."""
    waiting_bytes: int = 256 * 1024
    """As much waits to be written; then who appends waits."""
    retry_s: float = 1.0
    """Before a piece that the store did not take is offered again; it doubles up to 30 s."""


@dataclass(frozen=True, slots=True)
class AnswerHead:
    """Of the answer whose body the output is."""

    status: int
    headers: tuple[tuple[str, str], ...] = ()
    model: str = ""
    """That answers; not an alias."""
    version: str = ""
    """Of the deployment that began it; empty if it said none."""


@dataclass(frozen=True, slots=True)
class OutputProgress:
    """What there is of a job's answer so far, by its latest run that wrote any."""

    generation: int
    since: int
    """In which generation these bytes began at zero."""
    head: AnswerHead
    size_bytes: int
    pieces: tuple[tuple[str, int], ...]
    """Objects and their sizes, in order."""


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


class PartialOutput:
    """What one run of a job writes. Enter it, ``begin``, ``append``, then ``finish`` or ``close``.

    While the object store does not take what is written, ``append`` waits: the run gives no more credit then.
    """

    def __init__(
        self,
        objects: "ObjectStore",
        job_id: str,
        generation: int,
        settings: OutputSettings = OutputSettings(),
    ) -> None:
        self._objects = objects
        self._job_id = job_id
        self._generation = generation
        self._settings = settings
        self._since = generation
        self._kept_bytes = 0
        self._head: AnswerHead | None = None
        self._stored: list[str] = []
        self._stored_bytes = 0
        self._waiting: list[bytes] = []
        self._waiting_bytes = 0
        self._grew = asyncio.Event()
        self._shrank = asyncio.Event()
        self._enough = asyncio.Event()
        self._writer: asyncio.Task[None] | None = None
        self._storing = asyncio.Lock()

    @property
    def size_bytes(self) -> int:
        """Of the answer so far, what earlier runs wrote of it included."""
        return self._stored_bytes + self._waiting_bytes

    @property
    def begun(self) -> bool:
        return self._head is not None

    @property
    def went_on_in_vain(self) -> bool:
        """It was to go on with an earlier run's output, and nothing was added to that."""
        return self._since != self._generation and self.size_bytes <= self._kept_bytes

    async def begin(
        self, head: AnswerHead, kept: OutputProgress | None = None, kept_bytes: int | None = None
    ) -> None:
        """The answer begins; or, with ``kept``, goes on behind the first ``kept_bytes`` of an earlier run's.
        Raises StateError where those are gone."""
        assert self._head is None
        if kept is not None:
            assert kept.generation < self._generation
            self._since = kept.since
            await self._take_over(kept, kept.size_bytes if kept_bytes is None else kept_bytes)
        self._head = head
        if self._stored:  # else nothing is lost while nothing is there
            await self._store_head()
            await self._drop_earlier(kept)
        self._writer = asyncio.create_task(self._write())

    async def append(self, data: bytes) -> None:
        """Take bytes, and wait while too many wait to be written."""
        if not data:
            return
        self._waiting.append(data)
        self._waiting_bytes += len(data)
        self._grew.set()
        if self._waiting_bytes >= self._settings.piece_bytes:
            self._enough.set()
        while self._waiting_bytes > self._settings.waiting_bytes:
            self._shrank.clear()
            await self._shrank.wait()

    async def finish(self) -> tuple[str, int]:
        """Write the whole answer as the result: its name and size. Raises StateError."""
        await self._stop_writer()
        name = result_name(self._job_id, self._since, self._generation)
        stored = await self._objects.put(name, self._whole())
        return name, stored.size_bytes

    async def close(self) -> None:
        """Keep what there is for the run that goes on from it. Raises StateError."""
        await self._stop_writer()
        if self._head is not None and self._waiting:
            await self._store()

    async def abandon(self) -> None:
        """Write nothing more: the job is another run's."""
        self._waiting.clear()
        self._waiting_bytes = 0
        await self._stop_writer()

    async def __aenter__(self) -> "PartialOutput":
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._stop_writer()

    async def _stop_writer(self) -> None:
        """A piece that is being written is written to its end."""
        if self._writer is not None:
            writer, self._writer = self._writer, None
            async with self._storing:
                writer.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await writer

    async def _write(self) -> None:
        """Write pieces as they become due, until this is cancelled."""
        settings = self._settings
        retry_s = settings.retry_s
        while True:
            await self._grew.wait()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(settings.interval_s):  # unlike wait_for, never swallows a cancel
                    await self._enough.wait()
            try:
                async with self._storing:
                    await self._store()
                retry_s = settings.retry_s
            except ObjectStorageError as error:
                _log.warning("job_output_not_written", job=self._job_id, error=str(error), retry_s=retry_s)
                await asyncio.sleep(retry_s)
                retry_s = min(30.0, 2 * retry_s)

    async def _store(self) -> None:
        """Write what waits as one piece."""
        if not self._stored:
            await self._store_head()
        taken = len(self._waiting)
        data = b"".join(self._waiting[:taken])
        name = output_name(self._job_id, self._generation, len(self._stored) + 1)
        await self._objects.put_bytes(name, data)
        self._stored.append(name)
        self._stored_bytes += len(data)
        del self._waiting[:taken]
        self._waiting_bytes -= len(data)
        if not self._waiting:
            self._grew.clear()
        if self._waiting_bytes < self._settings.piece_bytes:
            self._enough.clear()
        self._shrank.set()

    async def _store_head(self) -> None:
        assert self._head is not None
        said = orjson.dumps({"since": self._since, "head": self._head})
        await self._objects.put_bytes(output_name(self._job_id, self._generation, 0), said)

    async def _take_over(self, kept: OutputProgress, size_bytes: int) -> None:
        if size_bytes:
            name = output_name(self._job_id, self._generation, 1)
            stored = await self._objects.put(name, _first_bytes(self._objects, kept, size_bytes))
            self._stored.append(name)
            self._stored_bytes = self._kept_bytes = stored.size_bytes

    async def _drop_earlier(self, kept: OutputProgress | None) -> None:
        if kept is not None:
            head = output_name(self._job_id, kept.generation, 0)
            with contextlib.suppress(StateError):  # they go with the job
                await self._objects.delete(head, *(name for name, _ in kept.pieces))

    async def _whole(self) -> AsyncGenerator[bytes, None]:
        for name in self._stored:
            async for piece in self._objects.read(name):
                yield piece
        for data in self._waiting:
            yield data


async def _first_bytes(
    objects: "ObjectStore", kept: OutputProgress, size_bytes: int
) -> AsyncGenerator[bytes, None]:
    left = size_bytes
    for name, has_bytes in kept.pieces:
        if left <= 0:
            return
        async for data in objects.read(name, 0, min(left, has_bytes)):
            yield data
        left -= has_bytes


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
            return OutputProgress(generation, said["since"], head, size_bytes, in_order)
        return None

    async def read(self, job: JobRecord, position: OutputPosition = START) -> AsyncIterator[OutputPiece]:
        """The bytes that there are now, from ``position`` on: of the result where the job has ended, else of
        what is written of it. Another ``since`` than the job's reads from its first byte."""
        if job.state.is_final:
            async for piece in self._read_result(job, position):
                yield piece
            return
        found = await self.progress(job.id)
        if found is None:
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
