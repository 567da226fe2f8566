"""A disk that runs full is told once, before writes fail, and once when there is room again."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
import structlog

from gateway.observability.metrics import Metrics
from gateway.runtime.config import Settings
from gateway.runtime.disks import DiskRoom, DiskWatch, disk_room, existing_places, written_places

MIB, GIB = 1024**2, 1024**3
STATE, UNREAD = Path("/state"), Path("/unread")


@pytest.mark.parametrize(
    ("free_bytes", "total_bytes", "no_files", "short", "full"),
    [
        (10 * GIB, 1000 * GIB, False, False, False),  # 1 % of a large disk is much
        (900 * MIB, 1000 * GIB, False, True, False),
        (900 * MIB, 10 * GIB, False, False, False),  # a small disk with 9 % free
        (400 * MIB, 10 * GIB, False, True, False),
        (63 * MIB, 100 * MIB, False, True, True),
        (10 * GIB, 1000 * GIB, True, True, True),
    ],
)
def test_a_disk_is_short_with_little_free_in_bytes_and_in_share(
    free_bytes: int, total_bytes: int, *, no_files: bool, short: bool, full: bool
) -> None:
    room = DiskRoom(STATE, free_bytes, total_bytes, no_files)
    assert (room.is_short(), room.full) == (short, full)


def test_each_disk_is_told_when_it_runs_short_and_when_it_has_room_again() -> None:
    metrics = Metrics()
    watch = DiskWatch(metrics, [STATE, UNREAD])

    def note(state_mib: int, unread_mib: int) -> list[tuple[str, str]]:
        with structlog.testing.capture_logs() as logs:
            watch.note(
                [
                    DiskRoom(STATE, state_mib * MIB, 500 * GIB),
                    DiskRoom(UNREAD, unread_mib * MIB, 500 * GIB),
                ]
            )
        return [(entry["event"], entry["directory"]) for entry in logs]

    def told() -> float | None:
        return metrics.registry.get_sample_value("trunkline_machine_trouble", {"trouble": "disk"})

    assert note(2000, 2000) == []
    assert (watch.short, told()) == (False, 0)
    assert note(1000, 2000) == [("disk_short", "/state")]
    assert note(1030, 900) == [("disk_short", "/unread")]  # just over the bound is not enough to be over
    assert (watch.short, told()) == (True, 1)
    assert note(1200, 900) == [("disk_back", "/state")]
    assert watch.short
    assert note(1200, 1200) == [("disk_back", "/unread")]
    assert (watch.short, told()) == (False, 0)


def test_a_disk_that_cannot_be_looked_at_is_none_that_is_short(tmp_path: Path) -> None:
    assert disk_room(tmp_path / "missing") is None
    watch = DiskWatch(Metrics(), [STATE])
    watch.note([DiskRoom(STATE, 0, GIB)])
    watch.note([])
    assert not watch.short


def test_a_real_directory_has_room_and_one_that_is_still_to_be_made_its_parents(tmp_path: Path) -> None:
    room = disk_room(tmp_path)
    assert room is not None
    assert 0 < room.free_bytes <= room.total_bytes
    assert existing_places([tmp_path, tmp_path / "a" / "b", tmp_path]) == [tmp_path]


@pytest.mark.parametrize(
    ("objects", "unread", "wanted"),
    [
        (None, None, ["/state"]),
        ("file:///objects", "/unread", ["/state", "/unread", "/objects"]),
        ("s3://bucket/jobs", None, ["/state"]),
    ],
)
def test_directories_are_looked_at_and_object_stores_elsewhere_are_not(
    objects: str | None, unread: str | None, wanted: list[str]
) -> None:
    given: dict[str, Any] = {"jobs": {"objects": objects}, "dispatch": {"unread_directory": unread}}
    assert [str(place) for place in written_places(Settings(**given), STATE)] == wanted


async def test_a_directory_that_cannot_be_looked_at_is_left_out_and_ends_nothing(tmp_path: Path) -> None:
    unusable = tmp_path / ("x" * 300) / "jobs"
    assert existing_places([tmp_path, unusable]) == [tmp_path]
    looked: list[Path] = []
    found = asyncio.Event()

    def room(place: Path) -> None:
        looked.append(place)
        loop.call_soon_threadsafe(found.set)

    loop, watch = asyncio.get_running_loop(), DiskWatch(Metrics(), [unusable, tmp_path], room)
    async with asyncio.TaskGroup() as tasks:
        looking = tasks.create_task(watch.keep_looking())
        await found.wait()
        looking.cancel()
    assert looked == [tmp_path]
