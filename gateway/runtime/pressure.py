"""Memory that runs short: large requests are refused in time, then all new ones, before the kernel ends us.

What the gateway holds itself is bounded (bodies, queue, records, windows); a container that is too small for
the bounds, or a neighbour that takes all, is what this is for.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path

import structlog

from gateway.domain.errors import Overloaded
from gateway.observability.metrics import Metrics

SMALL_BYTES = 64 * 1024
"""A body up to here is small: chats go on while uploads have to wait."""

ROOMY_BYTES = 20 * 1024**3
"""Free memory is compared with the machine's memory, but with no more than this: 2 GiB free are enough for a
gateway on any machine."""

BACK_SHARE = 0.03
"""So far below its threshold a level ends."""

STALLED_SHARE = 0.2
"""The part of the last 10 s in which nothing ran for want of memory, as the kernel counts it (PSI)."""

_log = structlog.get_logger("gateway")


class Level(IntEnum):
    FINE = 0
    SHORT = 1
    """Large bodies are refused."""
    CRITICAL = 2
    """All new ones are."""


@dataclass(frozen=True, slots=True)
class MemoryReading:
    """Memory at one moment. ``stalled`` is between 0 and 1; 0 when it is not known."""

    used_bytes: int
    limit_bytes: int
    stalled: float = 0.0

    @property
    def share(self) -> float:
        """How full it is; negative when there is more free than ever needed."""
        return 1 - (self.limit_bytes - self.used_bytes) / min(self.limit_bytes, ROOMY_BYTES)


class Pressure:
    """Judges readings and refuses requests by the last. Logs when it begins and when it is over."""

    def __init__(self, metrics: Metrics, threshold: float) -> None:
        """``threshold`` is the share at which memory is short; half-way from there to full it is critical."""
        self._metrics = metrics
        self._begins = {Level.SHORT: threshold, Level.CRITICAL: (1 + threshold) / 2}
        self.level = Level.FINE
        self.when_over: Callable[[], None] = lambda: None
        """Called when memory is short no longer."""
        metrics.machine_trouble("memory", False)

    def read(self, readings: Sequence[MemoryReading]) -> None:
        """Take what was read this moment, of every bound there is. Nothing known is no pressure."""
        level = max((self._judge(reading) for reading in readings), default=Level.FINE)
        before, self.level = self.level, level
        if bool(level) == bool(before):
            return
        self._metrics.machine_trouble("memory", bool(level))
        if level:
            fullest = max(readings, key=lambda reading: reading.share)
            _log.error(
                "memory_short",
                used_bytes=fullest.used_bytes,
                limit_bytes=fullest.limit_bytes,
                stalled=max(reading.stalled for reading in readings),
            )
        else:
            _log.warning("memory_back")
            self.when_over()

    def check(self, size_bytes: int) -> None:
        """A new body wants this much in all. Raises :class:`Overloaded`."""
        if self.level and (self.level is Level.CRITICAL or size_bytes > SMALL_BYTES):
            raise Overloaded("This gateway is short of memory; send the request again later.")

    def _judge(self, reading: MemoryReading) -> Level:
        for level in (Level.CRITICAL, Level.SHORT):
            begins = self._begins[level]
            if reading.share >= (begins - BACK_SHARE if self.level >= level else begins):
                return level
        stalls = STALLED_SHARE / 2 if self.level else STALLED_SHARE
        return Level.SHORT if reading.stalled >= stalls else Level.FINE


class MemoryReader:
    """Reads what Linux says: of our control groups (version 2), and of the machine. Elsewhere nothing."""

    def __init__(self, root: Path = Path("/")) -> None:
        self._proc = root / "proc"
        self._groups = root / "sys/fs/cgroup"

    def __call__(self) -> list[MemoryReading]:
        """A reading of each bound there is; those that cannot be read are left out. May wait for the kernel:
        call it from a worker thread."""
        found = [_known(self._group, path) for path in self._own_groups()]
        found.append(_known(self._machine, self._proc))
        return [reading for reading in found if reading is not None]

    def _own_groups(self) -> list[Path]:
        """Ours and those around it, each of which may have a bound."""
        try:
            lines = (self._proc / "self/cgroup").read_text().splitlines()
        except OSError:
            return []
        own = next((line[3:].lstrip("/") for line in lines if line.startswith("0::")), None)
        if own is None:
            return []
        path = self._groups / own
        return [path, *(parent for parent in path.parents if parent.is_relative_to(self._groups))]

    @staticmethod
    def _group(path: Path) -> MemoryReading:
        limit_bytes = int((path / "memory.max").read_text())  # "max" is none: ValueError
        used_bytes = int((path / "memory.current").read_text())
        cache_bytes = _fields(path / "memory.stat").get("inactive_file", 0)
        return MemoryReading(
            max(0, used_bytes - cache_bytes), max(1, limit_bytes), _stalled(path / "memory.pressure")
        )

    @staticmethod
    def _machine(proc: Path) -> MemoryReading:
        fields = _fields(proc / "meminfo")
        total_kib, free_kib = fields["MemTotal:"], fields["MemAvailable:"]
        return MemoryReading(
            (total_kib - free_kib) * 1024, total_kib * 1024, _stalled(proc / "pressure/memory")
        )


def _known(read: Callable[[Path], MemoryReading], path: Path) -> MemoryReading | None:
    try:
        return read(path)
    except (OSError, ValueError, LookupError):
        return None


def _fields(path: Path) -> dict[str, int]:
    words = (line.split() for line in path.read_text().splitlines())
    return {name: int(value) for name, value, *_ in words}


def _stalled(path: Path) -> float:
    """``full avg10`` of a PSI file; 0 where there is none."""
    try:
        line = next(line for line in path.read_text().splitlines() if line.startswith("full "))
        return float(line.split()[1].removeprefix("avg10=")) / 100
    except (OSError, ValueError, StopIteration, IndexError):
        return 0.0
