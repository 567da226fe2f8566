"""Objects are whole or not there, go in pieces, and say what is wrong with them."""

import asyncio
import hashlib
import os
from collections.abc import AsyncIterator, Awaitable
from pathlib import Path
from typing import Any

import obstore
import pytest
from obstore.exceptions import GenericError

from gateway.storage.errors import (
    BadValue,
    ObjectMissing,
    ObjectStorageError,
    ObjectStorageFull,
    ObjectTooLarge,
)
from gateway.storage.objects import PIECE_BYTES, ObjectStore


async def pieces(*given: bytes, error: Exception | None = None) -> AsyncIterator[bytes]:
    for piece in given:
        yield piece
    if error is not None:
        raise error


async def whole(store: ObjectStore, name: str, start: int = 0, stop: int | None = None) -> bytes:
    return b"".join([piece async for piece in store.read(name, start, stop)])


def files(directory: Path) -> set[str]:
    return {str(path.relative_to(directory)) for path in directory.rglob("*") if path.is_file()}


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "deep" / "objects"


@pytest.fixture
def objects(directory: Path) -> ObjectStore:
    return ObjectStore.in_directory(directory)


async def test_what_was_written_is_read_in_pieces_and_in_part(objects: ObjectStore) -> None:
    content = os.urandom(3 * PIECE_BYTES + 17)
    given = [content[at : at + 100_000] for at in range(0, len(content), 100_000)]
    written = await objects.put("files/a", pieces(*given))
    assert written.size_bytes == len(content) == await objects.size_bytes("files/a")
    assert written.sha256 == hashlib.sha256(content).hexdigest()
    read = [piece async for piece in objects.read("files/a")]
    assert b"".join(read) == content
    assert len(read) > 2
    assert max(map(len, read)) <= 2 * PIECE_BYTES
    assert await whole(objects, "files/a", 5) == content[5:]
    assert await whole(objects, "files/a", 5, PIECE_BYTES + 6) == content[5 : PIECE_BYTES + 6]
    assert await whole(objects, "files/a", 7, 7) == b""
    assert await objects.read_bytes("files/a", len(content)) == content
    with pytest.raises(ObjectTooLarge):
        await objects.read_bytes("files/a", len(content) - 1)


async def test_an_empty_object_is_one(objects: ObjectStore) -> None:
    await objects.put_bytes("files/empty", b"")
    assert await objects.size_bytes("files/empty") == 0
    assert await whole(objects, "files/empty") == b""


def test_only_its_owner_sees_the_directory(objects: ObjectStore, directory: Path) -> None:
    assert directory.stat().st_mode & 0o777 == 0o700


async def test_what_fails_halfway_leaves_what_was_there(objects: ObjectStore, directory: Path) -> None:
    await objects.put_bytes("files/a", b"before")
    large = b"x" * PIECE_BYTES
    with pytest.raises(ConnectionResetError):
        await objects.put("files/a", pieces(large, large, large, error=ConnectionResetError()))
    with pytest.raises(ObjectTooLarge):
        await objects.put("files/a", pieces(large, large, large), most_bytes=2 * PIECE_BYTES)
    assert await whole(objects, "files/a") == b"before"
    assert files(directory) == {"files/a"}


async def test_a_writer_that_is_cancelled_leaves_nothing(objects: ObjectStore, directory: Path) -> None:
    begun, never = asyncio.Event(), asyncio.Event()

    async def stalled() -> AsyncIterator[bytes]:
        for _ in range(3):
            yield b"x" * PIECE_BYTES
        begun.set()
        await never.wait()

    writing = asyncio.create_task(objects.put("files/a", stalled()))
    await begun.wait()
    writing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await writing
    assert not files(directory), "its threads are done"
    with pytest.raises(ObjectMissing):
        await objects.size_bytes("files/a")


async def test_no_object_appears_once_its_writer_was_cancelled(
    objects: ObjectStore, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thread of the backend that gives the file its name cannot be stopped."""
    named, may_end, put = asyncio.Event(), asyncio.Event(), obstore.put_async

    async def slowly(*arguments: Any, **more: Any) -> None:
        named.set()
        await asyncio.shield(_late(may_end, put(*arguments, **more)))

    monkeypatch.setattr(obstore, "put_async", slowly)
    writing = asyncio.create_task(objects.put_bytes("files/a", b"-"))
    await named.wait()
    writing.cancel()
    for _ in range(5):
        await asyncio.sleep(0)
    assert not writing.done()
    may_end.set()
    with pytest.raises(asyncio.CancelledError):
        await writing
    assert not files(directory), "there was no further piece for it"


async def _late(event: asyncio.Event, written: Awaitable[Any]) -> None:
    await event.wait()
    await written


async def test_names_are_listed_by_their_directory(objects: ObjectStore) -> None:
    for name in ("jobs/1/part/b", "jobs/1/part/a", "jobs/12/part/c", "files/x"):
        await objects.put_bytes(name, b"-")
    assert await objects.names("jobs/1") == ["jobs/1/part/a", "jobs/1/part/b"]
    assert await objects.names("none") == []


async def test_what_is_deleted_is_gone_and_may_be_deleted_again(objects: ObjectStore) -> None:
    await objects.put_bytes("files/a", b"-")
    await objects.put_bytes("files/b", b"-")
    await objects.delete("files/a", "files/missing")
    await objects.delete("files/a")
    await objects.delete()
    with pytest.raises(ObjectMissing, match="there is no object files/a"):
        await whole(objects, "files/a")
    assert await whole(objects, "files/b") == b"-"


async def test_a_full_disk_is_named(objects: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> None:
    async def full(*_: object, **__: object) -> None:
        raise GenericError("Unable to write\n\nDebug source: No space left on device (os error 28)")

    monkeypatch.setattr(obstore, "put_async", full)
    with pytest.raises(ObjectStorageFull, match="make room"):
        await objects.put_bytes("files/a", b"-")


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("ftp://host/x", "ftp:// is no object store"),
        ("bucket", "nothing:// is no object store"),
        ("s3://user:secret@bucket/x", "holds no credentials"),
    ],
)
def test_addresses_that_are_none_are_refused(url: str, said: str) -> None:
    with pytest.raises(BadValue, match=said) as caught:
        ObjectStore.at(url)
    assert "secret" not in str(caught.value)


async def test_a_directory_can_be_given_as_an_address(tmp_path: Path) -> None:
    objects = ObjectStore.at(f"file://{tmp_path / 'there'}")
    await objects.put_bytes("a", b"-")
    assert files(tmp_path) == {"there/a"}


def test_a_directory_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(ObjectStorageError, match="file"):
        ObjectStore.in_directory(tmp_path / "file" / "objects")
