"""Numbers from measurements."""

import os
from collections.abc import Sequence
from pathlib import Path


def percentile(values: Sequence[float], share: float) -> float:
    """The value that ``share`` (0 to 1) of them do not exceed. Raises ValueError for none."""
    if not values:
        raise ValueError("no measurements")
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def cpu_s(pid: int) -> float:
    """User and system time of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def milliseconds(seconds: float) -> str:
    return f"{seconds * 1000:.1f} ms"


def mebibytes(size_bytes: float) -> str:
    return f"{size_bytes / 2**20:.1f} MiB"
