"""Memory that was freed goes back to the system."""

import ctypes
import os
import platform

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
