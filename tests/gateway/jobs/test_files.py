"""Files come whole or not at all, and what is gone takes its bytes with it."""

import asyncio
import threading
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gateway.domain.errors import BadRequest
from gateway.domain.files import FilePurpose, FileRecord, NewFile
from gateway.jobs.files import FileBounds, FileService
from gateway.jobs.objects import ObjectOpener
from gateway.storage import Store
from gateway.storage.errors import ObjectMissing, ObjectTooLarge, StateUnreachable, UnknownRecord
from gateway.storage.files import TooManyBytes
from gateway.storage.objects import ObjectStore

NOW_S = 1_800_000_000.0


async def pieces(*given: bytes, error: Exception | None = None) -> AsyncIterator[bytes]:
    for piece in given:
        yield piece
    if error is not None:
        raise error


class Cabinet:
    """A file service on a store and a directory, with a clock of its own."""

    def __init__(self, directory: Path) -> None:
        self.now_s = NOW_S
        self.directory = directory / "objects"
        self.store = Store.open(directory / "state")
        self.service = FileService(
            self.store.files,
            ObjectOpener(lambda: ObjectStore.in_directory(self.directory)),
            FileBounds(file_bytes=100, tenant_bytes=250),
            wall=lambda: self.now_s,
        )

    def new(self, name: str) -> NewFile:
        return NewFile(f"file-{name}", "t", "k", name, FilePurpose.BATCH, self.now_s)

    def kept(self) -> set[str]:
        return {path.name for path in self.directory.rglob("*") if path.is_file()}


@pytest.fixture
async def cabinet(tmp_path: Path) -> AsyncIterator[Cabinet]:
    made = Cabinet(tmp_path)
    yield made
    made.store.close()


async def content(cabinet: Cabinet, name: str) -> bytes:
    file = await cabinet.service.get(f"file-{name}", "t")
    return b"".join([piece async for piece in cabinet.service.read(file)])


async def test_nothing_is_made_before_the_first_file(cabinet: Cabinet) -> None:
    assert await cabinet.service.sweep() == 0
    assert not cabinet.directory.exists()


async def test_a_file_is_kept_as_it_is_described_at_its_end(cabinet: Cabinet) -> None:
    new = cabinet.new("a")
    described = replace(new, filename="b", purpose=FilePurpose.VISION)
    made = await cabinet.service.create(new, pieces(b"ab", b"c"), 3, lambda: described)
    assert (made.new, made.size_bytes) == (described, 3)
    assert await content(cabinet, "a") == b"abc"


async def test_a_file_that_the_store_keeps_without_saying_so_stays_for_who_asks_again(
    cabinet: Cabinet, monkeypatch: pytest.MonkeyPatch
) -> None:
    finish = cabinet.store.files.finish

    def finish_unheard(*given: Any) -> FileRecord:
        finish(*given)
        raise StateUnreachable("it went away")

    monkeypatch.setattr(cabinet.store.files, "finish", finish_unheard)
    with pytest.raises(StateUnreachable):
        await cabinet.service.create(cabinet.new("a"), pieces(b"abc"), 3, key="once")
    monkeypatch.undo()
    again = replace(cabinet.new("b"), filename="a")
    made = await cabinet.service.create(again, pieces(b"abc"), 3, key="once")
    assert made.new.id == "file-a"
    assert await content(cabinet, "a") == b"abc"


async def test_whoever_leaves_while_a_file_is_finished_removes_nothing_of_it(
    cabinet: Cabinet, monkeypatch: pytest.MonkeyPatch
) -> None:
    finish, asked, goes_on = cabinet.store.files.finish, asyncio.Event(), threading.Event()
    loop = asyncio.get_running_loop()

    def finish_late(*given: Any) -> FileRecord:
        loop.call_soon_threadsafe(asked.set)
        assert goes_on.wait(60.0)
        return finish(*given)

    monkeypatch.setattr(cabinet.store.files, "finish", finish_late)
    creating = asyncio.ensure_future(cabinet.service.create(cabinet.new("a"), pieces(b"abc"), 3))
    await asked.wait()
    creating.cancel()
    await asyncio.sleep(0)
    goes_on.set()
    with pytest.raises(asyncio.CancelledError):
        await creating
    assert await content(cabinet, "a") == b"abc"


@pytest.mark.parametrize("announced", [0, 101])
async def test_a_file_that_is_too_long_leaves_nothing(cabinet: Cabinet, announced: int) -> None:
    with pytest.raises(ObjectTooLarge):
        await cabinet.service.create(cabinet.new("a"), pieces(b"x" * 60, b"x" * 60), announced)
    assert cabinet.kept() == set()
    assert cabinet.store.files.removable(NOW_S + 10**9, 10) == ()


async def test_a_tenants_bytes_are_bounded_also_where_nothing_was_announced(cabinet: Cabinet) -> None:
    for name in ("a", "b"):
        await cabinet.service.create(cabinet.new(name), pieces(b"x" * 100), 0)
    with pytest.raises(ObjectTooLarge):
        await cabinet.service.create(cabinet.new("c"), pieces(b"x" * 60), 0)
    with pytest.raises(TooManyBytes):
        await cabinet.service.create(cabinet.new("c"), pieces(b"x"), 60)
    await cabinet.service.delete("file-a", "t")
    await cabinet.service.create(cabinet.new("d"), pieces(b"x" * 60), 60)
    assert cabinet.kept() == {"file-b", "file-d"}


async def test_files_that_come_at_once_have_no_more_than_their_tenant_may_keep(cabinet: Cabinet) -> None:
    begun = asyncio.Semaphore(0)
    go_on = asyncio.Event()

    async def held() -> AsyncIterator[bytes]:
        begun.release()
        await go_on.wait()
        yield b"x" * 90

    names = ("a", "b", "c")
    uploads = [asyncio.ensure_future(cabinet.service.create(cabinet.new(name), held(), 0)) for name in names]
    for _ in uploads:
        await begun.acquire()
    go_on.set()
    outcomes = await asyncio.gather(*uploads, return_exceptions=True)
    assert [type(each) for each in outcomes].count(TooManyBytes) == 1
    assert [type(each) for each in outcomes].count(FileRecord) == len(cabinet.kept()) == 2


async def test_an_upload_that_breaks_off_leaves_nothing(cabinet: Cabinet) -> None:
    for error in (ConnectionResetError(), BadRequest("no")):
        with pytest.raises(type(error)):
            await cabinet.service.create(cabinet.new("a"), pieces(b"x", error=error), 0)

    def refused() -> NewFile:
        raise BadRequest("no")

    with pytest.raises(BadRequest):
        await cabinet.service.create(cabinet.new("a"), pieces(b"x"), 0, refused)
    assert cabinet.kept() == set()
    with pytest.raises(UnknownRecord):
        await cabinet.service.get("file-a", "t")


async def test_an_upload_that_is_cancelled_leaves_nothing(cabinet: Cabinet) -> None:
    begun, never = asyncio.Event(), asyncio.Event()

    async def stalled() -> AsyncIterator[bytes]:
        yield b"x"
        begun.set()
        await never.wait()

    creating = asyncio.create_task(cabinet.service.create(cabinet.new("a"), stalled(), 0))
    await begun.wait()
    creating.cancel()
    with pytest.raises(asyncio.CancelledError):
        await creating
    assert cabinet.store.files.removable(NOW_S + 10**9, 10) == ()
    assert "file-a" not in cabinet.kept()


async def test_a_sweep_takes_what_is_expired_and_what_was_given_up(cabinet: Cabinet) -> None:
    await cabinet.service.create(cabinet.new("kept"), pieces(b"x"), 0)
    expiring = replace(cabinet.new("a"), expires_s=NOW_S + 10)
    await cabinet.service.create(expiring, pieces(b"x"), 0)
    objects = ObjectStore.in_directory(cabinet.directory)
    cabinet.store.files.begin(cabinet.new("half"), 5, 250)
    await objects.put_bytes("files/file-half", b"half")
    assert await cabinet.service.sweep() == 0
    cabinet.now_s += 2 * 86_400
    assert await cabinet.service.sweep() == 2
    assert cabinet.kept() == {"file-kept"}
    assert await cabinet.service.sweep() == 0


async def test_bytes_that_are_gone_are_named(cabinet: Cabinet) -> None:
    await cabinet.service.create(cabinet.new("a"), pieces(b"x"), 0)
    (cabinet.directory / "files" / "file-a").unlink()
    with pytest.raises(ObjectMissing):
        await content(cabinet, "a")
    await cabinet.service.delete("file-a", "t")
