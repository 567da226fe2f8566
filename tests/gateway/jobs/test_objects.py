"""The object store is opened once, when it is needed first."""

import asyncio
from pathlib import Path

import pytest

from gateway.jobs.objects import ObjectOpener
from gateway.storage.errors import ObjectStorageError
from gateway.storage.objects import ObjectStore


async def test_all_who_ask_get_the_same_store(tmp_path: Path) -> None:
    opened = []

    def open_objects() -> ObjectStore:
        opened.append(ObjectStore.in_directory(tmp_path))
        return opened[-1]

    opener = ObjectOpener(open_objects)
    first, second = await asyncio.gather(opener(), opener())
    assert opened == [first]
    assert first is second


async def test_a_store_that_could_not_be_opened_is_tried_again(tmp_path: Path) -> None:
    errors = [ObjectStorageError("not now")]

    def open_objects() -> ObjectStore:
        if errors:
            raise errors.pop()
        return ObjectStore.in_directory(tmp_path)

    opener = ObjectOpener(open_objects)
    with pytest.raises(ObjectStorageError):
        await opener()
    assert isinstance(await opener(), ObjectStore)
