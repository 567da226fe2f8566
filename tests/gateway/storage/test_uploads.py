"""Uploads hold their bytes of the tenant's bounds, take parts until they end, and become one file."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from sqlalchemy import Connection, select

from gateway.domain.files import FilePurpose
from gateway.domain.uploads import MOST_PARTS, NewUpload, UploadState
from gateway.storage import Store, schema
from gateway.storage.errors import StateBusy, UnknownRecord
from gateway.storage.files import TooManyBytes
from gateway.storage.uploads import FORGOTTEN_S, UnfitParts, UploadEnded

NOW_S = 1_800_000_000.0
MOST = 100


def new(name: str = "u", size_bytes: int = 10) -> NewUpload:
    purpose = FilePurpose.BATCH
    return NewUpload(name, "t", "k", "a.jsonl", "text/jsonl", purpose, size_bytes, NOW_S, NOW_S + 3600, 60.0)


def begin(store: Store, *parts: tuple[str, int], name: str = "u", size_bytes: int = 10) -> None:
    store.uploads.begin(new(name, size_bytes), MOST)
    for part_id, part_bytes in parts:
        store.uploads.begin_part(name, "t", part_id, NOW_S)
        store.uploads.finish_part(part_id, "t", part_bytes, NOW_S)


def complete(store: Store, name: str = "u") -> None:
    with store.database.write() as connection:
        store.uploads.complete(connection, name, "file-1", NOW_S)


def test_what_was_begun_is_there_for_its_tenant(any_store: Store) -> None:
    begin(any_store)
    found = any_store.uploads.get("u", "t", NOW_S)
    assert (found.new, found.state, found.file_id) == (new(), UploadState.PENDING, None)
    with pytest.raises(UnknownRecord):
        any_store.uploads.get("u", "other", NOW_S)
    assert any_store.files.list("t") == (), "what it reserves is no file"


def test_an_upload_counts_as_its_bytes_until_it_ends(any_store: Store) -> None:
    begin(any_store, name="a", size_bytes=60)
    with pytest.raises(TooManyBytes):
        begin(any_store, name="b", size_bytes=60)
    any_store.uploads.cancel("a", "t", NOW_S)
    any_store.files.forget(any_store.files.removable(NOW_S, 10))
    begin(any_store, name="b", size_bytes=60)


def test_an_upload_that_could_not_be_begun_takes_no_bytes(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = store.database.write_concurrently

    @contextmanager
    def refusing_uploads() -> Iterator[Connection]:
        with write() as connection:
            yield connection
            if connection.execute(select(schema.uploads)).first() is not None:
                raise StateBusy("nothing was kept")

    monkeypatch.setattr(store.database, "write_concurrently", refusing_uploads)
    with pytest.raises(StateBusy):
        begin(store, name="a", size_bytes=60)
    monkeypatch.undo()
    begin(store, name="b", size_bytes=60)


def test_chosen_parts_come_in_their_order_and_must_be_all_of_it(any_store: Store) -> None:
    begin(any_store, ("p1", 4), ("p2", 6), ("p3", 1))
    any_store.uploads.begin_part("u", "t", "half", NOW_S)
    _, parts = any_store.uploads.chosen("u", "t", ("p2", "p1"), NOW_S)
    assert [part.id for part in parts] == ["p2", "p1"]
    for wrong, said in (
        (("p1",), "have 4 bytes, and 10 were announced"),
        (("p1", "p2", "p3"), "have 11 bytes"),
        (("p1", "p1"), "named twice"),
        (("p1", "half"), "no part half"),
    ):
        with pytest.raises(UnfitParts, match=said):
            any_store.uploads.chosen("u", "t", wrong, NOW_S)


def test_parts_have_twice_the_announced_bytes_at_the_most(any_store: Store) -> None:
    begin(any_store, ("p1", 10), ("p2", 10))
    with pytest.raises(UnfitParts, match="may have no more"):
        any_store.uploads.begin_part("u", "t", "p3", NOW_S)
    any_store.uploads.drop_part("p2")
    assert any_store.uploads.begin_part("u", "t", "p3", NOW_S)[1] == 10


def test_parts_that_come_at_once_have_no_more_together(any_store: Store) -> None:
    begin(any_store)
    for part_id in ("p1", "p2", "p3"):
        assert any_store.uploads.begin_part("u", "t", part_id, NOW_S)[1] == 20
    any_store.uploads.finish_part("p1", "t", 15, NOW_S)
    with pytest.raises(UnfitParts, match="5 bytes more, and this part has 6"):
        any_store.uploads.finish_part("p2", "t", 6, NOW_S)
    any_store.uploads.finish_part("p3", "t", 5, NOW_S)


def test_there_are_so_many_parts_and_no_more(store: Store) -> None:
    begin(store)
    rows = [
        {"id": f"p{n}", "upload_id": "u", "state": "ready", "size_bytes": 0, "created_s": NOW_S}
        for n in range(MOST_PARTS)
    ]
    with store.database.write() as connection:
        connection.execute(schema.upload_parts.insert(), rows)
    with pytest.raises(UnfitParts):
        store.uploads.begin_part("u", "t", "one more", NOW_S)


@pytest.mark.parametrize("how", ["completed", "cancelled", "expired"])
def test_what_has_ended_takes_nothing_more(any_store: Store, how: str) -> None:
    begin(any_store, ("p1", 10))
    any_store.uploads.begin_part("u", "t", "late", NOW_S)
    now_s = NOW_S
    if how == "completed":
        complete(any_store)
    elif how == "cancelled":
        any_store.uploads.cancel("u", "t", NOW_S)
    else:
        now_s += 3600
    assert any_store.uploads.get("u", "t", now_s).state == how
    with pytest.raises(UploadEnded, match=how):
        any_store.uploads.begin_part("u", "t", "p2", now_s)
    with pytest.raises(UploadEnded):
        any_store.uploads.finish_part("late", "t", 1, now_s)
    with pytest.raises(UploadEnded):
        any_store.uploads.chosen("u", "t", ("p1",), now_s)
    with pytest.raises(UploadEnded):
        any_store.uploads.cancel("u", "t", now_s)


def test_one_of_two_makes_the_file(any_store: Store) -> None:
    begin(any_store, ("p1", 10))
    complete(any_store)
    with pytest.raises(UploadEnded):
        complete(any_store)
    assert any_store.uploads.get("u", "t", NOW_S).file_id == "file-1"


def test_parts_of_what_has_ended_are_named_until_they_are_gone_and_the_upload_a_day_later(
    any_store: Store,
) -> None:
    begin(any_store, ("p1", 10))
    begin(any_store, ("q1", 3), name="v")
    assert any_store.uploads.ended(NOW_S + 3599, 10) == ()
    any_store.uploads.cancel("v", "t", NOW_S + 1)
    assert any_store.uploads.ended(NOW_S + 1, 10) == ("v",)
    assert any_store.uploads.ended(NOW_S + 3600, 10) == ("u", "v")
    any_store.uploads.forget(("u", "v"), NOW_S + 3600)
    assert any_store.uploads.ended(NOW_S + 3600, 10) == ()
    assert any_store.uploads.get("u", "t", NOW_S + 3600).state is UploadState.EXPIRED
    with pytest.raises(UnknownRecord, match="took too long"):
        any_store.uploads.finish_part("p1", "t", 10, NOW_S + 3600)
    late = NOW_S + 3600 + FORGOTTEN_S
    assert any_store.uploads.ended(late, 10) == ("u", "v")
    any_store.uploads.forget(("u", "v"), late)
    with pytest.raises(UnknownRecord):
        any_store.uploads.get("u", "t", late)
