"""A file is there once it is whole, for its tenant, until it is deleted or expires."""

from dataclasses import replace

import pytest

from gateway.domain.files import FilePurpose, FileRecord, NewFile
from gateway.storage import Store
from gateway.storage.errors import UnknownRecord
from gateway.storage.files import ABANDONED_S, FileKeptBefore, TooManyBytes
from gateway.storage.submissions import IdempotencyConflict

NOW_S = 1_800_000_000.0
MOST = 1000


def new(number: int, tenant: str = "t", **given: object) -> NewFile:
    file = NewFile(f"file-{number}", tenant, "k", "a.jsonl", FilePurpose.BATCH, NOW_S)
    return replace(file, **given)  # type: ignore[arg-type]


def upload(store: Store, file: NewFile, size_bytes: int = 10) -> FileRecord:
    store.files.begin(file, size_bytes, MOST)
    return store.files.finish(file, size_bytes, "ab" * 32)


def test_a_file_is_there_once_it_is_whole(any_store: Store) -> None:
    files = any_store.files
    assert files.begin(new(1), 10, MOST) == MOST
    with pytest.raises(UnknownRecord):
        files.get("file-1", "t")
    described = new(1, filename="b.png", purpose=FilePurpose.VISION, expires_s=NOW_S + 5)
    made = files.finish(described, 12, "cd" * 32)
    assert made == files.get("file-1", "t") == FileRecord(made.number, described, 12, "cd" * 32)


def test_an_idempotency_key_keeps_one_file(any_store: Store) -> None:
    def finish(number: int, sha256: str = "ab", **given: float | str) -> FileRecord:
        file = replace(new(number), **given)  # type: ignore[arg-type]
        any_store.files.begin(file, 10, MOST)
        return any_store.files.finish(file, 10, sha256, key="once")

    made = finish(1, expires_s=NOW_S + 3600.0)
    with pytest.raises(FileKeptBefore) as kept:
        finish(2, created_s=NOW_S + 0.3, expires_s=NOW_S + 3600.3)
    assert kept.value.file_id == made.id
    with pytest.raises(IdempotencyConflict):
        finish(3, "cd", expires_s=NOW_S + 3600.0)
    with pytest.raises(IdempotencyConflict):
        finish(4, filename="b", expires_s=NOW_S + 3600.0)
    with pytest.raises(IdempotencyConflict):
        finish(5, expires_s=NOW_S + 9.0)
    assert [file.id for file in any_store.files.list("t")] == [made.id]


def test_a_tenant_sees_its_own(any_store: Store) -> None:
    upload(any_store, new(1, "a"))
    with pytest.raises(UnknownRecord):
        any_store.files.get("file-1", "b")
    with pytest.raises(UnknownRecord):
        any_store.files.delete("file-1", "b")
    assert any_store.files.list("b") == ()


def test_lists_have_pages_in_both_orders(any_store: Store) -> None:
    for number in range(5):
        upload(any_store, new(number, purpose=FilePurpose.VISION if number == 2 else FilePurpose.BATCH))
    files = any_store.files
    assert [file.id for file in files.list("t", limit=2)] == ["file-4", "file-3"]
    assert [file.id for file in files.list("t", limit=2, after="file-3")] == ["file-2", "file-1"]
    older = files.list("t", after="file-3", newest_first=False)
    assert [file.id for file in older] == ["file-4"]
    assert [file.id for file in files.list("t", purpose="vision")] == ["file-2"]
    with pytest.raises(UnknownRecord):
        files.list("t", after="file-9")


def test_a_tenant_keeps_no_more_bytes_than_it_may(any_store: Store) -> None:
    files = any_store.files
    upload(any_store, new(1), 600)
    with pytest.raises(TooManyBytes, match="keeps 600 bytes of files and may keep 1000"):
        files.begin(new(2), 401, MOST)
    assert files.begin(new(2), 300, MOST) == 400
    with pytest.raises(TooManyBytes):
        files.begin(new(3), 101, MOST)  # what is announced counts
    assert files.begin(new(3, "other"), 1000, MOST) == 1000
    files.delete("file-1", "t")
    files.forget(["file-1"])
    assert files.begin(new(4), 0, MOST) == 700


def test_what_was_kept_since_a_file_was_begun_counts_at_its_end(any_store: Store) -> None:
    files = any_store.files
    for number in (1, 2):
        assert files.begin(new(number), 0, 100) == 100
    files.finish(new(1), 60, "ab" * 32, most_bytes=100)
    with pytest.raises(TooManyBytes):
        files.finish(new(2), 41, "ab" * 32, most_bytes=100)
    assert files.finish(new(2), 40, "ab" * 32, most_bytes=100).size_bytes == 40


def test_what_was_deleted_is_removed_and_forgotten(any_store: Store) -> None:
    files = any_store.files
    upload(any_store, new(1))
    upload(any_store, new(2))
    files.delete("file-1", "t")
    with pytest.raises(UnknownRecord):
        files.get("file-1", "t")
    with pytest.raises(UnknownRecord):
        files.delete("file-1", "t")
    assert files.removable(NOW_S, 10) == ("file-1",)
    assert files.removable(NOW_S, 10) == ("file-1",), "until its object is gone"
    files.forget(["file-1", "file-2"])
    assert files.removable(NOW_S, 10) == ()
    assert files.get("file-2", "t").id == "file-2", "only what is deleted is forgotten"


def test_what_expires_goes(any_store: Store) -> None:
    upload(any_store, new(1, expires_s=NOW_S + 10))
    assert any_store.files.removable(NOW_S + 9, 10) == ()
    assert any_store.files.removable(NOW_S + 10, 10) == ("file-1",)
    with pytest.raises(UnknownRecord):
        any_store.files.get("file-1", "t")


def test_an_upload_that_was_given_up_goes(any_store: Store) -> None:
    files = any_store.files
    files.begin(new(1), 10, MOST)
    assert files.removable(NOW_S + ABANDONED_S, 10) == ()
    assert files.removable(NOW_S + ABANDONED_S + 1, 10) == ("file-1",)
    with pytest.raises(UnknownRecord, match="took too long"):
        files.finish(new(1), 10, "ab")
