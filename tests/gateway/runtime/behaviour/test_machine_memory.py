"""Memory that was freed goes back to the system."""

import ctypes
import os
import platform
import subprocess
import sys

import pytest

from gateway.runtime.machine import trimmer
from tests.support.leaks import rss_bytes

MIB = 2**20


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc keeps it and can be told")
def test_memory_that_a_burst_left_behind_is_given_back() -> None:
    libc = ctypes.CDLL(None)
    libc.malloc.restype, libc.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
    libc.free.argtypes = [ctypes.c_void_p]
    pieces = [libc.malloc(32 * 1024) for _ in range(1500)]
    for piece in pieces:
        ctypes.memset(piece, 1, 32 * 1024)
    for place, piece in enumerate(pieces):
        if place % 100:
            libc.free(piece)
    held = rss_bytes(os.getpid())
    trimmer()()
    assert held - rss_bytes(os.getpid()) > 20 * MIB
    for piece in pieces[::100]:
        libc.free(piece)


_KEEPS = """
import ctypes, resource
from gateway.runtime.machine import keep_freed_memory, trimmer
keep_freed_memory()
libc = ctypes.CDLL(None)
libc.malloc.restype, libc.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
libc.free.argtypes = [ctypes.c_void_p]

def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt

def burst():
    before = faults()
    pieces = [libc.malloc(32 * 1024) for _ in range(128)]
    for piece in pieces:
        ctypes.memset(piece, 1, 32 * 1024)
    for piece in reversed(pieces):
        libc.free(piece)
    return faults() - before

first, second = burst(), burst()
trimmer()()
print(first, second, burst())
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc can be told")
def test_what_one_burst_freed_the_next_one_finds_until_it_is_given_back() -> None:
    run = subprocess.run([sys.executable, "-c", _KEEPS], capture_output=True, text=True, check=True)
    first, second, after_trimming = map(int, run.stdout.split())
    pages = 128 * 32 // 4
    assert first > pages // 2
    assert second < pages // 10
    assert after_trimming > pages // 2
