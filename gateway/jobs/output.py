"""The answer of a job while it is written. :mod:`gateway.jobs.output_reader` reads it.

An object store cannot append: what an engine sends is kept in pieces of a second's bytes or 64 KiB, whichever
is first (:mod:`gateway.jobs.object_names`). A short answer that is over within the second is written once, as
the result.
"""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import orjson
import structlog

from gateway.jobs.live_answer import AnswerFollower
from gateway.jobs.object_names import output_name, result_name
from gateway.storage.errors import ObjectStorageError, StateError

if TYPE_CHECKING:  # its library is loaded at the first use
    from gateway.storage.objects import ObjectStore

_log = structlog.get_logger(__name__)


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
    accumulated: bool = False
    """They are events of which the answer is yet to be put together: nobody else is shown them."""


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
        follower: AnswerFollower | None = None,
        *,
        held: bool = False,
    ) -> None:
        """``held``: nothing is written until :meth:`write_out`, or until as much waits as may."""
        self._held = held
        self._objects = objects
        self._job_id = job_id
        self._generation = generation
        self._settings = settings
        self._follower = follower
        self._since = generation
        self._kept_bytes = 0
        self._head: AnswerHead | None = None
        self._accumulated = False
        self._answer: list[bytes] | None = None
        """In place of what was written."""
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
        self,
        head: AnswerHead,
        kept: OutputProgress | None = None,
        kept_bytes: int | None = None,
        *,
        accumulated: bool = False,
    ) -> None:
        """The answer begins; or, with ``kept``, goes on behind the first ``kept_bytes`` of an earlier run's.
        ``accumulated``: what is appended are events of which the answer is put together, to be told by
        :meth:`answer`. Raises StateError where what is kept is gone."""
        assert self._head is None
        self._accumulated = accumulated
        if kept is not None:
            assert kept.generation < self._generation
            self._since = kept.since
            await self._take_over(kept, kept.size_bytes if kept_bytes is None else kept_bytes)
        self._head = head
        if self._stored:  # else nothing is lost while nothing is there
            await self._store_head()
            await self._drop_earlier(kept)
        if self._follower is not None:
            self._follower.begin(self._since, self._stored_bytes)
        if not self._held:
            self._writer = asyncio.create_task(self._write())

    def write_out(self) -> None:
        """Write from now on what was held back. Idempotent."""
        if self._held:
            self._held = False
            if self._head is not None:
                self._writer = asyncio.create_task(self._write())

    async def append(self, data: bytes) -> None:
        """Take bytes, and wait while too many wait to be written."""
        if not data:
            return
        if self._follower is not None:
            self._follower.append(data)
        self._waiting.append(data)
        self._waiting_bytes += len(data)
        self._grew.set()
        if self._waiting_bytes >= self._settings.piece_bytes:
            self._enough.set()
        while self._waiting_bytes > self._settings.waiting_bytes:
            self.write_out()
            self._shrank.clear()
            await self._shrank.wait()

    async def pieces(self) -> AsyncIterator[bytes]:
        """All that was appended, what earlier runs wrote included. Nothing may be appended meanwhile. Raises
        StateError."""
        await self._stop_writer()
        async for piece in self._whole():
            yield piece

    def answer(self, data: bytes) -> None:
        """The next bytes of the answer, where what was written are events of which it was put together."""
        assert self._accumulated
        self._answer = [*(self._answer or ()), data]

    async def drop(self) -> None:
        """Forget what was written: another answer begins. Raises StateError."""
        await self._stop_writer()
        if self._stored:
            head = output_name(self._job_id, self._generation, 0)
            await self._objects.delete(head, *self._stored)
        self._head, self._answer, self._accumulated = None, None, False
        self._since, self._kept_bytes = self._generation, 0
        self._stored, self._stored_bytes, self._waiting, self._waiting_bytes = [], 0, [], 0
        self._grew.clear()
        self._enough.clear()

    async def finish(self) -> tuple[str, int]:
        """Write the whole answer as the result: its name and size. Raises StateError."""
        await self._stop_writer()
        name = result_name(self._job_id, self._since, self._generation)
        if self._accumulated:
            stored = await self._objects.put_bytes(name, b"".join(self._answer or ()))
        else:
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
            await asyncio.wait([writer])  # whoever is cancelled meanwhile hears of it
            if not writer.cancelled():
                writer.result()

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
        if self._follower is not None:
            self._follower.stored(self._stored_bytes)
        if not self._waiting:
            self._grew.clear()
        if self._waiting_bytes < self._settings.piece_bytes:
            self._enough.clear()
        self._shrank.set()

    async def _store_head(self) -> None:
        assert self._head is not None
        said: dict[str, object] = {"since": self._since, "head": self._head}
        if self._accumulated:
            said["accumulated"] = True
        await self._objects.put_bytes(output_name(self._job_id, self._generation, 0), orjson.dumps(said))

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
