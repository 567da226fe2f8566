"""Files: their bytes in the object store, what is known of them in the database."""

import asyncio
import time
from collections.abc import AsyncIterable, AsyncIterator, Callable
from dataclasses import dataclass
from functools import partial

import structlog

from gateway.domain.files import MOST_FILE_BYTES, FileRecord, NewFile
from gateway.jobs.objects import ObjectOpener
from gateway.storage.errors import StateError, StateUnreachable
from gateway.storage.files import FileKeptBefore, FileStore, InTransaction

_log = structlog.get_logger(__name__)

SWEEP_S = 60.0
"""Between two searches for what is to be removed."""

_REMOVED_AT_ONCE = 200


@dataclass(frozen=True, slots=True)
class FileBounds:
    """What is taken at the most."""

    file_bytes: int = MOST_FILE_BYTES
    tenant_bytes: int = 100 * 1024 * 1024 * 1024
    """Of all files of a tenant together."""


class FileService:
    """Belongs to the event loop's thread. Methods raise StateError, of which ObjectStorageError is one."""

    def __init__(
        self,
        files: FileStore,
        objects: ObjectOpener,
        bounds: FileBounds = FileBounds(),
        wall: Callable[[], float] = time.time,
    ) -> None:
        self.bounds = bounds
        self.wall = wall
        self._files = files
        self.objects = objects

    async def create(
        self,
        file: NewFile,
        pieces: AsyncIterable[bytes],
        announced_bytes: int,
        described: Callable[[], NewFile] | None = None,
        key: str | None = None,
    ) -> FileRecord:
        """Keep a file. ``announced_bytes``: as many as it will have at the most, 0 where that is not known.
        ``described`` says what it is once its bytes are there, for what comes behind them. Where the same
        file was kept with the same idempotency ``key`` before, it is that one.

        Raises TooManyBytes for what the tenant has, ObjectTooLarge, IdempotencyConflict, and whatever
        ``pieces`` and ``described`` raise; then there is no such file.
        """
        allowed = await asyncio.to_thread(self._files.begin, file, announced_bytes, self.bounds.tenant_bytes)
        most_bytes = min(self.bounds.file_bytes, allowed)
        try:
            bound = self.bounds.tenant_bytes
            return await self.fill(file, pieces, most_bytes, described, key=key, tenant_bytes=bound)
        except FileKeptBefore as error:
            return await self.get(error.file_id, file.tenant)

    async def fill(
        self,
        file: NewFile,
        pieces: AsyncIterable[bytes],
        most_bytes: int,
        described: Callable[[], NewFile] | None = None,
        also: InTransaction | None = None,
        key: str | None = None,
        tenant_bytes: int | None = None,
    ) -> FileRecord:
        """Write a file that was begun in the store, and finish it there together with what ``also`` does.
        ``tenant_bytes``: what all files of the tenant may have; None: that does not count. Raises as
        :meth:`create` does, FileKeptBefore, and what ``also`` raises; then there is no such file."""
        try:
            stored = await (await self.objects()).put(file.object_name, pieces, most_bytes=most_bytes)
            whole = file if described is None else described()
        except BaseException:
            await asyncio.shield(self.discard(file.id))
            raise
        finish = partial(self._files.finish, whole, stored.size_bytes, stored.sha256, also, key, tenant_bytes)
        finishing = asyncio.ensure_future(self._finish(file.id, finish))
        try:
            return await asyncio.shield(finishing)
        except asyncio.CancelledError:  # the thread goes on: its end says what is to be removed
            await asyncio.wait([finishing])
            raise

    async def _finish(self, file_id: str, finish: Callable[[], FileRecord]) -> FileRecord:
        try:
            return await asyncio.to_thread(finish)
        except StateUnreachable:  # it may have been finished; if not, it is swept
            raise
        except BaseException:
            await self.discard(file_id)
            raise

    async def get(self, file_id: str, tenant: str) -> FileRecord:
        """Raises UnknownRecord."""
        return await asyncio.to_thread(self._files.get, file_id, tenant)

    async def list(
        self, tenant: str, *, purpose: str | None, after: str | None, limit: int, newest_first: bool
    ) -> tuple[FileRecord, ...]:
        """Raises UnknownRecord for an ``after`` that the tenant does not have."""

        def read() -> tuple[FileRecord, ...]:
            return self._files.list(
                tenant, purpose=purpose, after=after, limit=limit, newest_first=newest_first
            )

        return await asyncio.to_thread(read)

    async def read(self, file: FileRecord) -> AsyncIterator[bytes]:
        """Its bytes in pieces. Raises ObjectMissing where they are gone."""
        async for piece in (await self.objects()).read(file.new.object_name):
            yield piece

    async def delete(self, file_id: str, tenant: str) -> None:
        """Raises UnknownRecord."""
        if await asyncio.to_thread(self._files.delete, file_id, tenant):
            await self.discard(file_id)

    async def sweep(self) -> int:
        """Remove what is expired, deleted or was given up; how many. Several processes may do so at once."""
        ids = await asyncio.to_thread(self._files.removable, self.wall(), _REMOVED_AT_ONCE)
        if ids:
            await (await self.objects()).delete(*(f"files/{file_id}" for file_id in ids))
            await asyncio.to_thread(self._files.forget, ids)
        return len(ids)

    async def keep_swept(self) -> None:
        """Sweep every minute until this is cancelled."""
        while True:
            try:
                while await self.sweep() == _REMOVED_AT_ONCE:
                    pass
            except StateError as error:
                _log.warning("files_not_swept", error=str(error))
            await asyncio.sleep(SWEEP_S)

    async def discard(self, file_id: str) -> None:
        """Remove a file that is not to be, whatever there is of it. What fails here is left to the sweep."""
        try:
            await asyncio.to_thread(self._files.delete, file_id)
            await (await self.objects()).delete(f"files/{file_id}")
            await asyncio.to_thread(self._files.forget, (file_id,))
        except StateError as error:
            _log.warning("file_not_removed", file=file_id, error=str(error))
