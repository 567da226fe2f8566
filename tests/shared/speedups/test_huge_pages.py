"""The interpreter's objects in huge pages, each time in a process of its own."""

import os
import subprocess
import sys

import pytest

from shared.speedups import huge_pages
from tests.support.huge_pages import ENABLED, THERE, can_collapse

BEGINNING = """
import gc, mmap, re
from pathlib import Path
from shared.speedups import collapse_pages, use_huge_pages

def advised_kib():
    # Of mappings for which huge pages are asked for: what is resident.
    found = 0
    for mapping in re.split(r"(?m)^(?=[0-9a-f]+-[0-9a-f]+ )", Path("/proc/self/smaps").read_text()):
        if re.search(r"^VmFlags:.* hg", mapping, re.M):
            found += int(re.search(r"^Rss: +([0-9]+) kB", mapping, re.M)[1])
    return found

def kib(what):
    rows = Path("/proc/self/smaps_rollup").read_text()
    return int(re.search(rf"^{what}: +([0-9]+) kB", rows, re.M)[1])

def objects(count):
    return [(number, number) for number in range(count)]
"""


def run(program: str, **environment: str) -> str:
    """What it printed, in a process that ended in order."""
    command = [sys.executable, "-c", BEGINNING + program]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=60, env={**os.environ, **environment}
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_in_python_nothing_changes() -> None:
    assert not huge_pages.use_huge_pages()
    assert huge_pages.collapse_pages() == 0
    if sys.platform == "linux":
        program = "print(use_huge_pages()); kept = objects(100_000); print(advised_kib())"
        assert run(program, TRUNKLINE_NATIVE="0").split() == ["False", "0"]


@pytest.mark.skipif(not THERE, reason="the native functions were not built, or this is not Linux")
@pytest.mark.skipif(not ENABLED.exists(), reason="this system has no huge pages")
def test_objects_that_are_made_afterwards_are_in_pages_for_which_huge_ones_are_asked() -> None:
    program = "assert use_huge_pages(); kept = objects(200_000); print(advised_kib())"
    assert int(run(program)) >= 10 * 1024


@pytest.mark.skipif(not THERE, reason="the native functions were not built, or this is not Linux")
@pytest.mark.skipif(not ENABLED.exists(), reason="this system has no huge pages")
def test_freed_memory_is_given_back_also_where_it_was_taken_before() -> None:
    program = """
before = objects(200_000)
assert use_huge_pages() and use_huge_pages()
for _ in range(3):
    kept = objects(400_000)
    most = advised_kib()
    some = kept[::100_000]
    del kept
    left = advised_kib()
    assert left < most / 2, (left, most)
del before
gc.collect()
again = objects(400_000)
assert again[399_999] == (399_999, 399_999) and some[3] == (300_000, 300_000)
print("whole")
"""
    assert run(program) == "whole\n"


@pytest.mark.skipif(not can_collapse(), reason="no native functions, or no collapsing here")
def test_what_is_there_already_comes_into_huge_pages_and_takes_no_more_memory() -> None:
    program = """
kept = objects(300_000)
before, resident = kib("AnonHugePages"), kib("Rss")
collapsed = collapse_pages()
assert collapsed >= 8 << 20, collapsed
assert kib("AnonHugePages") - before >= 8 << 10, kib("AnonHugePages")
assert kib("Rss") - resident <= collapsed >> 13, (kib("Rss"), resident)
assert kept == objects(300_000)
assert collapse_pages() >= collapsed - (2 << 20)
print("whole")
"""
    assert run(program) == "whole\n"


@pytest.mark.skipif(not can_collapse(), reason="no native functions, or no collapsing here")
def test_memory_of_which_little_is_in_use_stays_in_small_pages() -> None:
    program = """
sparse = mmap.mmap(-1, 64 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
for at in range(0, 64 << 20, 1 << 20):
    sparse[at] = 7
resident = kib("Rss")
collapse_pages()
assert kib("Rss") - resident < 8 << 10, (kib("Rss"), resident)
assert {sparse[at] for at in range(0, 64 << 20, 1 << 20)} == {7}
sparse.close()
print("whole")
"""
    assert run(program) == "whole\n"


@pytest.mark.skipif(not THERE, reason="the native functions were not built, or this is not Linux")
def test_where_the_system_knows_no_collapsing_nothing_is_said_to_be_collapsed() -> None:
    program = """
kept = objects(100_000)
collapsed = collapse_pages()
assert collapsed % (2 << 20) == 0 and collapsed <= kib("Rss") << 10
print(collapsed > 0)
"""
    assert run(program) == f"{can_collapse()}\n"
