"""Uploads: parts that come one by one, and become a file at the end."""

import asyncio
import contextlib
import hashlib
import secrets
from collections.abc import AsyncIterable, AsyncIterator, Sequence

import structlog

from gateway.domain.files import BATCH_KEPT_S, FilePurpose, FileRecord, NewFile
from gateway.domain.uploads import MOST_PART_BYTES, NewUpload, UploadPart, UploadRecord, objects_of
from gateway.jobs.files import SWEEP_S, FileService
from gateway.storage.errors import ObjectMissing, StateError
from gateway.storage.files import FileStore
from gateway.storage.submissions import OnceKey
from gateway.storage.uploads import UnfitParts, UploadEnded, UploadStore

_log = structlog.get_logger(__name__)

_REMOVED_AT_ONCE = 50


class UploadService:
    """Belongs to the event loop's thread. Methods raise StateError, of which ObjectStorageError is one."""

    def __init__(self, uploads: UploadStore, store: FileStore, files: FileService) -> None:
        self.files = files
        self._uploads = uploads
        self._store = store

    async def begin(self, upload: NewUpload, once: OnceKey | None = None) -> UploadRecord:
        """Where the same was begun with the same idempotency key before, it is that one. Raises TooManyBytes
        for what the tenant has, IdempotencyConflict, UnknownRecord for one that is no more."""
        most_bytes = self.files.bounds.tenant_bytes
        upload_id = await asyncio.to_thread(self._uploads.begin, upload, most_bytes, once)
        return await self.get(upload_id, upload.tenant)

    async def get(self, upload_id: str, tenant: str) -> UploadRecord:
        """Raises UnknownRecord."""
        return await asyncio.to_thread(self._uploads.get, upload_id, tenant, self.files.wall())

    async def add(self, upload_id: str, tenant: str, pieces: AsyncIterable[bytes]) -> UploadPart:
        """Keep a part. Raises UnknownRecord, UploadEnded, UnfitParts, ObjectTooLarge, and whatever ``pieces``
        raises; then there is no such part."""
        part_id = f"part_{secrets.token_hex(16)}"
        upload, left = await asyncio.to_thread(
            self._uploads.begin_part, upload_id, tenant, part_id, self.files.wall()
        )
        name = upload.part_object(part_id)
        try:
            most_bytes = min(MOST_PART_BYTES, left)
            stored = await (await self.files.objects()).put(name, pieces, most_bytes=most_bytes)
            return await asyncio.to_thread(
                self._uploads.finish_part, part_id, tenant, stored.size_bytes, self.files.wall()
            )
        except BaseException:
            await asyncio.shield(self._drop(part_id, name))
            raise

    async def complete(
        self, upload_id: str, tenant: str, part_ids: Sequence[str], md5: str | None
    ) -> tuple[UploadRecord, FileRecord]:
        """The file that these parts make, in this order; ``md5``: in hexadecimal digits, what it must have.
        Of several calls at once one makes the file.

        One that is complete stays so: whoever asks again gets the same file. Raises UnknownRecord,
        UploadEnded, UnfitParts; then it can be tried again.
        """
        now_s = self.files.wall()
        if (done := await self._made(upload_id, tenant)) is not None:
            return done
        upload, parts = await asyncio.to_thread(self._uploads.chosen, upload_id, tenant, part_ids, now_s)
        kept_s = upload.file_kept_s
        if kept_s is None and upload.purpose is FilePurpose.BATCH:
            kept_s = BATCH_KEPT_S
        file = NewFile(
            f"file-{secrets.token_hex(12)}",
            tenant,
            upload.key_id,
            upload.filename,
            upload.purpose,
            now_s,
            None if kept_s is None else now_s + kept_s,
        )
        # the upload has its bytes of the tenant's bounds already
        await asyncio.to_thread(self._store.begin, file, 0, None)
        try:
            made = await self.files.fill(
                file,
                self._joined(upload, parts, md5),
                upload.size_bytes,
                also=lambda connection: self._uploads.complete(connection, upload_id, file.id, now_s),
            )
        except ObjectMissing as error:
            raise UploadEnded(f"upload {upload_id} expired") from error
        await self._remove(upload_id)
        return await self.get(upload_id, tenant), made

    async def _made(self, upload_id: str, tenant: str) -> tuple[UploadRecord, FileRecord] | None:
        """What it became already. Raises UnknownRecord, also where that file is gone."""
        found = await self.get(upload_id, tenant)
        return None if found.file_id is None else (found, await self.files.get(found.file_id, tenant))

    async def cancel(self, upload_id: str, tenant: str) -> UploadRecord:
        """Raises UnknownRecord, UploadEnded."""
        found = await asyncio.to_thread(self._uploads.cancel, upload_id, tenant, self.files.wall())
        await self._remove(upload_id)
        return found

    async def sweep(self) -> int:
        """Remove the parts of what has ended; how many uploads that were. Several processes may do so at
        once."""
        ids = await asyncio.to_thread(self._uploads.ended, self.files.wall(), _REMOVED_AT_ONCE)
        if ids:
            await self._remove_parts(ids)
        return len(ids)

    async def keep_swept(self) -> None:
        """Sweep every minute until this is cancelled."""
        while True:
            try:
                while await self.sweep() == _REMOVED_AT_ONCE:
                    pass
            except StateError as error:
                _log.warning("uploads_not_swept", error=str(error))
            await asyncio.sleep(SWEEP_S)

    async def _joined(
        self, upload: NewUpload, parts: Sequence[UploadPart], md5: str | None
    ) -> AsyncIterator[bytes]:
        objects, digest = await self.files.objects(), hashlib.md5(usedforsecurity=False)
        for part in parts:
            async for piece in objects.read(upload.part_object(part.id)):
                digest.update(piece)
                yield piece
        if md5 is not None and digest.hexdigest() != md5.lower():
            raise UnfitParts(f"these parts have the MD5 {digest.hexdigest()}, and {md5} was given")

    async def _drop(self, part_id: str, name: str) -> None:
        """What fails here is left to the sweep."""
        with contextlib.suppress(StateError):
            await (await self.files.objects()).delete(name)
            await asyncio.to_thread(self._uploads.drop_part, part_id)

    async def _remove(self, upload_id: str) -> None:
        """What fails here is left to the sweep."""
        try:
            await self._remove_parts((upload_id,))
        except StateError as error:
            _log.warning("upload_not_removed", upload=upload_id, error=str(error))

    async def _remove_parts(self, ids: Sequence[str]) -> None:
        objects = await self.files.objects()
        for upload_id in ids:
            await objects.delete(*await objects.names(objects_of(upload_id)))
        await asyncio.to_thread(self._uploads.forget, ids, self.files.wall())
