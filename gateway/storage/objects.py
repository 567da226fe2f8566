"""Bytes by name: what files, requests and results of jobs are made of.

A directory by default, Amazon S3, Google Cloud Storage or Azure by URL; obstore speaks to all of them. No
object is ever read or held whole: it goes in and comes out in pieces. An object appears at once and whole, or
not at all.
"""

import asyncio
import contextlib
import errno
import hashlib
import os
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Awaitable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import obstore
from obstore.exceptions import BaseError
from obstore.store import LocalStore, from_url
from obstore.store import ObjectStore as Backend

from gateway.domain.files import OBJECT_SCHEMES
from gateway.storage.errors import (
    BadValue,
    ObjectMissing,
    ObjectStorageError,
    ObjectStorageFull,
    ObjectTooLarge,
)

if TYPE_CHECKING:
    from obstore import GetOptions

PIECE_BYTES = 1 << 20
"""About as much of an object is in memory at once when it is read; four times as much when it is written."""

_WRITTEN_AT_ONCE = 2
"""Pieces on their way to a remote store."""
_REMOTE_PIECE_BYTES = 5 << 20
"""S3 takes no smaller parts of an upload but for its last."""
_DELETED_AT_ONCE = 1000
_FULL = (errno.ENOSPC, errno.EDQUOT)


@dataclass(frozen=True, slots=True)
class StoredObject:
    """What was written."""

    size_bytes: int
    sha256: str
    """Hex digits."""


@dataclass(frozen=True, slots=True)
class ListedObject:
    """An object of a listing."""

    name: str
    size_bytes: int
    modified_s: float
    """Seconds since 1970, by the store's clock."""


class ObjectStore:
    """Objects in one directory or bucket. For the event loop of one thread."""

    def __init__(self, backend: Backend, place: str, directory: Path | None = None) -> None:
        """``place`` is for messages. ``directory``: where the backend keeps its files, if it does."""
        self.place = place
        self._backend = backend
        self._directory = directory

    @classmethod
    def in_directory(cls, directory: Path) -> "ObjectStore":
        """Make it (mode 0700) unless it is there. Raises ObjectStorageError."""
        with _errors(str(directory)):
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            return cls(LocalStore(directory), str(directory), directory)

    @classmethod
    def at(cls, url: str) -> "ObjectStore":
        """A bucket or container, with a prefix: ``s3://bucket/prefix``, ``gs://…``, ``az://account/container``,
        or ``file:///directory``. Credentials come from the environment, as the providers' own tools find them
        (``AWS_ACCESS_KEY_ID`` and so on). Raises BadValue for an address that is none."""
        parts = urlsplit(url)
        if parts.scheme == "file":
            return cls.in_directory(Path(parts.path))
        if parts.scheme not in OBJECT_SCHEMES:
            raise BadValue(
                f"{parts.scheme or 'nothing'}:// is no object store: use one of {', '.join(OBJECT_SCHEMES)}"
            )
        if parts.username or parts.password:
            raise BadValue("an object store's address holds no credentials: they belong in the environment")
        place = f"{parts.scheme}://{parts.netloc}{parts.path}"
        try:
            return cls(from_url(url), place)
        except (BaseError, ValueError) as error:
            raise BadValue(f"{place} cannot be used as an object store: {_first_line(error)}") from error

    async def put(
        self, name: str, pieces: AsyncIterable[bytes], *, most_bytes: int | None = None
    ) -> StoredObject:
        """Write an object, in place of an earlier one of this name. It is on the disk when this returns.

        Raises ObjectTooLarge after ``most_bytes``, ObjectStorageFull, ObjectStorageError, and whatever
        ``pieces`` raises; nothing is left behind then. Whoever is cancelled does not know whether the object
        is there; in a directory none appears afterwards.
        """
        source = _CountedPieces(pieces, most_bytes)
        chunk_bytes = PIECE_BYTES if self._directory is not None else _REMOTE_PIECE_BYTES
        with _errors(self.place):
            try:
                writing = asyncio.ensure_future(
                    obstore.put_async(
                        self._backend, name, source, chunk_size=chunk_bytes, max_concurrency=_WRITTEN_AT_ONCE
                    )
                )
                if self._directory is None:
                    await writing
                else:
                    await _to_its_end(writing, source)
            except Exception:
                if source.error is None:
                    raise
            else:
                if self._directory is not None:
                    await asyncio.to_thread(_sync, self._directory / name)
        if source.error is not None:  # not the store's, which would be translated
            raise source.error
        return StoredObject(source.size_bytes, source.digest.hexdigest())

    async def put_bytes(self, name: str, content: bytes) -> StoredObject:
        """Write a small object. Raises as :meth:`put` does."""

        async def whole() -> AsyncGenerator[bytes, None]:
            yield content

        return await self.put(name, whole())

    async def read(self, name: str, start: int = 0, stop: int | None = None) -> AsyncIterator[bytes]:
        """The bytes from ``start`` up to ``stop`` (None: the end), in pieces of about ``PIECE_BYTES``.

        Raises ObjectMissing before the first piece, and ObjectStorageError at any."""
        with _errors(self.place, name):
            if stop is not None and stop <= start:
                await obstore.head_async(self._backend, name)
                return
            options: GetOptions = {}
            if stop is not None:
                options = {"range": (start, stop)}
            elif start:
                options = {"range": {"offset": start}}
            found = await obstore.get_async(self._backend, name, options=options)
            async for piece in found.stream(PIECE_BYTES):
                yield bytes(piece)

    async def read_bytes(self, name: str, most_bytes: int) -> bytes:
        """A small object whole. Raises ObjectMissing, ObjectTooLarge, ObjectStorageError."""
        found = bytearray()
        async for piece in self.read(name):
            found += piece
            if len(found) > most_bytes:
                raise ObjectTooLarge(f"{name} has more than {most_bytes} bytes")
        return bytes(found)

    async def size_bytes(self, name: str) -> int:
        """Raises ObjectMissing, ObjectStorageError."""
        with _errors(self.place, name):
            return int((await obstore.head_async(self._backend, name))["size"])

    async def names(self, prefix: str) -> Sequence[str]:
        """Every object below the directory ``prefix``, in order. Raises ObjectStorageError."""
        return [each.name for each in await self.listed(prefix)]

    async def listed(self, prefix: str) -> "Sequence[ListedObject]":
        """As :meth:`names`, with what is known of each."""
        found = [each async for each in self.each_listed(prefix)]
        return sorted(found, key=lambda each: each.name)

    async def each_listed(self, prefix: str) -> "AsyncIterator[ListedObject]":
        """As :meth:`listed`, in any order and not all at once."""
        with _errors(self.place):
            async for some in obstore.list(self._backend, prefix):
                for each in some:
                    modified_s = each["last_modified"].timestamp()
                    yield ListedObject(str(each["path"]), int(each["size"]), modified_s)

    async def delete(self, *names: str) -> None:
        """Remove objects; those that are missing are none. Raises ObjectStorageError."""
        for at in range(0, len(names), _DELETED_AT_ONCE):
            some = names[at : at + _DELETED_AT_ONCE]
            with _errors(self.place):
                await asyncio.gather(
                    *(_unless_missing(obstore.delete_async(self._backend, name)) for name in some)
                )


class _CountedPieces:
    """Counts and hashes what passes, and keeps its source's error apart from those of the store."""

    def __init__(self, pieces: AsyncIterable[bytes], most_bytes: int | None) -> None:
        self.size_bytes = 0
        self.digest = hashlib.sha256()
        self.error: Exception | None = None
        self._pieces, self._most_bytes = aiter(pieces), most_bytes
        self._waiting: asyncio.Task[Any] | None = None
        """Whoever waits for the next piece."""
        self._ended = False

    def __aiter__(self) -> "_CountedPieces":
        return self

    def end(self) -> None:
        """Nobody wants it any more: there is no further piece, and none is waited for."""
        self._ended = True
        if self._waiting is not None:
            self._waiting.cancel()

    async def __anext__(self) -> bytes:
        self._waiting = asyncio.current_task()
        try:
            if self._ended:
                raise asyncio.CancelledError
            piece = await anext(self._pieces)
            self.size_bytes += len(piece)
            if self._most_bytes is not None and self.size_bytes > self._most_bytes:
                raise ObjectTooLarge(f"more than {self._most_bytes} bytes")
        except StopAsyncIteration:
            raise
        except Exception as error:
            self.error = error
            raise
        finally:
            self._waiting = None
        self.digest.update(piece)
        return piece


async def _to_its_end(writing: "asyncio.Future[Any]", source: _CountedPieces) -> None:
    """Wait for a write of files, also when cancelled meanwhile: what its threads do goes on, and a file that
    appeared later would be nobody's."""
    try:
        await asyncio.shield(writing)
    except asyncio.CancelledError:
        source.end()
        await asyncio.gather(writing, return_exceptions=True)
        raise


async def _unless_missing(deletion: Awaitable[None]) -> None:
    with contextlib.suppress(FileNotFoundError):
        await deletion


@contextlib.contextmanager
def _errors(place: str, name: str | None = None) -> Iterator[None]:
    """The backend's errors become ours. Its messages name paths and responses over many lines: the first one
    says what happened."""
    try:
        yield
    except FileNotFoundError as error:
        if name is None:
            raise ObjectStorageError(f"{place}: {_first_line(error)}") from error
        raise ObjectMissing(f"there is no object {name} in {place}") from error
    except (OSError, BaseError) as error:
        if any(f"(os error {code})" in str(error) for code in _FULL):
            raise ObjectStorageFull(f"{place} is full: make room, or delete files and results") from error
        raise ObjectStorageError(f"{place}: {_first_line(error)}") from error


def _first_line(error: BaseException) -> str:
    return str(error).split("\n", 1)[0]


def _sync(path: Path) -> None:
    """The file and its name are on the disk afterwards."""
    for each in (path, path.parent):
        descriptor = os.open(each, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
