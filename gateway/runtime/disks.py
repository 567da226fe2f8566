"""Disks that run full, told before writes fail: of the state, of what waits unread, and of jobs' results."""

import asyncio
import contextlib
import os
import shutil
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import structlog

from gateway.observability.metrics import Metrics
from gateway.runtime.config import Settings

MIB = 1024 * 1024
NO_BYTES = 64 * MIB
"""With less left a disk counts as full."""

FEW_BYTES, FEW_SHARE = 1024 * MIB, 0.05
"""With less than both left a disk is short of room. A large one is not with 1 GiB free, nor a small one whose
twentieth is."""

BACK = 1.1
"""It is no longer short when so many times as much is free."""

LOOK_S = 10.0
"""How often it is looked. A disk that fills at 100 MB/s takes as long for a gigabyte."""

_log = structlog.get_logger("gateway")


@dataclass(frozen=True, slots=True)
class DiskRoom:
    """What is left of the disk that a directory is on."""

    place: Path
    free_bytes: int
    total_bytes: int
    no_files: bool = False
    """It takes no further file, whatever is free."""

    @property
    def full(self) -> bool:
        """Writes fail, or will in a moment."""
        return self.no_files or self.free_bytes < NO_BYTES

    def is_short(self, times: float = 1.0) -> bool:
        """It is full, or nearly so. ``times``: by bounds that are so many times as high."""
        few = self.free_bytes < times * FEW_BYTES and self.free_bytes < times * FEW_SHARE * self.total_bytes
        return self.no_files or self.free_bytes < times * NO_BYTES or few


def disk_room(place: Path) -> DiskRoom | None:
    """None where that cannot be read. Waits for the disk."""
    try:
        usage, nodes = shutil.disk_usage(place), os.statvfs(place)
    except OSError:
        return None
    return DiskRoom(place, usage.free, usage.total, bool(nodes.f_files) and nodes.f_favail == 0)


def written_places(settings: Settings, state_dir: Path) -> list[Path]:
    """The directories that a gateway with these settings writes to; not object stores elsewhere."""
    objects = urlsplit(settings.jobs.objects or "")
    found = [state_dir, settings.dispatch.unread_directory]
    if objects.scheme == "file":
        found.append(Path(objects.path))
    return [place for place in found if place is not None]


def existing_places(wanted: Iterable[Path]) -> list[Path]:
    """Each of these directories once, or what is above it where it is not there yet; none that cannot be
    looked at, as on a server that is away. Waits for the disk."""
    found: dict[Path, None] = {}
    for place in wanted:
        with contextlib.suppress(OSError):
            while not place.is_dir() and place != place.parent:
                place = place.parent
            found.setdefault(place)
    return list(found)


class DiskWatch:
    """Looks at the disks every ``LOOK_S``. Logs when one becomes short of room, and when it has some again;
    ``short`` says whether one is. Belongs to the event loop's thread."""

    def __init__(
        self,
        metrics: Metrics,
        places: Sequence[Path],
        room: Callable[[Path], DiskRoom | None] = disk_room,
    ) -> None:
        """``places`` are directories that the gateway writes to."""
        self._metrics = metrics
        self._places = places
        self._room = room
        self._short: frozenset[Path] = frozenset()
        metrics.machine_trouble("disk", False)

    @property
    def short(self) -> bool:
        """A disk is full or nearly so, as was seen last."""
        return bool(self._short)

    async def keep_looking(self) -> None:
        """Runs until cancelled."""
        while True:
            self.note(await asyncio.to_thread(self._look))
            await asyncio.sleep(LOOK_S)

    def note(self, rooms: Iterable[DiskRoom]) -> None:
        """Take what was seen this moment. A disk that cannot be looked at is left out, and counts as well."""
        short = set[Path]()
        for room in rooms:
            was = room.place in self._short
            if room.is_short(BACK if was else 1.0):
                short.add(room.place)
            if room.place in short and not was:
                _log.error(
                    "disk_short",
                    directory=str(room.place),
                    free_bytes=room.free_bytes,
                    total_bytes=room.total_bytes,
                )
            elif was and room.place not in short:
                _log.warning("disk_back", directory=str(room.place), free_bytes=room.free_bytes)
        self._short = frozenset(short)
        self._metrics.machine_trouble("disk", self.short)

    def _look(self) -> list[DiskRoom]:
        """Waits for the disks."""
        rooms = (self._room(place) for place in existing_places(self._places))
        return [room for room in rooms if room is not None]
