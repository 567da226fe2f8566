"""Numbers from measurements."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median


def percentile(values: Sequence[float], share: float) -> float:
    """The value that ``share`` (0 to 1) of them do not exceed. Raises ValueError for none."""
    if not values:
        raise ValueError("no measurements")
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


@dataclass(frozen=True, slots=True)
class RatioOfRounds:
    """Of two sides that were measured in each round: the median, the least and the most of the rounds."""

    middle: float
    least: float
    most: float

    def __str__(self) -> str:
        return f"{self.middle:.2f} ({self.least:.2f} to {self.most:.2f})"


def ratio_of_rounds(ours: Sequence[float], theirs: Sequence[float]) -> RatioOfRounds:
    """Round by round, so that what slows a whole round favours nobody. Raises ValueError for none."""
    ratios = [our / their for our, their in zip(ours, theirs, strict=True)]
    if not ratios:
        raise ValueError("no measurements")
    return RatioOfRounds(median(ratios), min(ratios), max(ratios))


def cpu_s(pid: int) -> float:
    """User and system time of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def milliseconds(seconds: float) -> str:
    return f"{seconds * 1000:.1f} ms"


def mebibytes(size_bytes: float) -> str:
    return f"{size_bytes / 2**20:.1f} MiB"
