"""What this system offers of huge pages, and what a process has of them."""

import os
import re
import sys
from pathlib import Path

from shared.speedups import NATIVE

ENABLED = Path("/sys/kernel/mm/transparent_hugepage/enabled")
THERE = sys.platform == "linux" and NATIVE


def can_collapse() -> bool:
    """Linux 6.1, programs may have huge pages, and the native functions are in use."""
    if not (THERE and ENABLED.exists()) or "[never]" in ENABLED.read_text():
        return False
    major, minor = os.uname().release.split(".")[:2]
    return (int(major), int(minor)) >= (6, 1)


def heap_in_huge_pages_kib(pid: int) -> int:
    """How much of the C library's heap a process has in them."""
    mappings = re.split(r"(?m)^(?=[0-9a-f]+-[0-9a-f]+ )", Path(f"/proc/{pid}/smaps").read_text())
    heaps = [mapping for mapping in mappings if "[heap]" in mapping.partition("\n")[0]]
    return sum(
        int(found) for heap in heaps for found in re.findall(r"(?m)^AnonHugePages: +([0-9]+) kB", heap)
    )
