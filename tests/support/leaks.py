"""Counting what a test leaves behind: file descriptors and asyncio tasks, here and in other processes."""

import asyncio
import os
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

_PATIENCE_S = 3.0
"""How long closing may take: sockets close and tasks end a few turns of the loop after they were told to."""


def open_descriptors(pid: int | None = None) -> Counter[str]:
    """What the descriptors of a process (default: this one) point to, sockets and pipes by kind alone."""
    found: Counter[str] = Counter()
    for entry in Path(f"/proc/{pid or os.getpid()}/fd").iterdir():
        try:
            target = str(entry.readlink())
        except OSError:
            continue
        found[target.partition(":[")[0]] += 1
    return found


def descriptor_count(pid: int) -> int:
    """How many descriptors a process holds."""
    return open_descriptors(pid).total()


def rss_bytes(pid: int) -> int:
    """Resident memory of a process, without its children."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True, slots=True)
class Snapshot:
    descriptors: Counter[str]
    tasks: frozenset[asyncio.Task[object]]

    @classmethod
    def take(cls) -> "Snapshot":
        return cls(open_descriptors(), frozenset(asyncio.all_tasks()))

    def growth(self) -> list[str]:
        """What is there now and was not at the time of the snapshot."""
        more = open_descriptors() - self.descriptors
        found = [f"{count} × {target}" for target, count in more.items()]
        current = asyncio.current_task()
        fresh = [task for task in asyncio.all_tasks() - self.tasks if not task.done() and task is not current]
        return found + [f"task {task.get_coro()}" for task in fresh]


async def assert_nothing_leaked(before: Snapshot) -> None:
    """Wait a moment for things to close, then fail naming what stayed open."""
    deadline_s = asyncio.get_running_loop().time() + _PATIENCE_S
    while (left := before.growth()) and asyncio.get_running_loop().time() < deadline_s:  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    assert not left, f"left behind: {', '.join(left)}"
