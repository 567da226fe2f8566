"""TCP ports of loopback for processes that are about to be started."""

import contextlib
import os
import random
import socket
import tempfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path

try:
    import fcntl
except ImportError:  # pragma: no cover - Windows
    fcntl = None  # type: ignore[assignment]

_LOWEST = 10_240
_EPHEMERAL = 32_768
"""Where Linux begins to take the ports of outgoing connections (ip-sysctl.rst, ``ip_local_port_range``). A
port from there may be gone before the process that is to listen on it has started."""

_given: set[int] = set()


def free_port(preferred: int = 0) -> int:
    """``preferred`` if nobody listens there, else a port that no outgoing connection gets.

    No other process of this user is given the latter as long as this one lives, nor this one again. Raises
    OSError where there is none.
    """
    for port in _candidates(preferred):
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(("127.0.0.1", port))
            return int(probe.getsockname()[1])
    raise OSError("no free port on 127.0.0.1")


def _candidates(preferred: int) -> Iterator[int]:
    if preferred:
        yield preferred
    count = _EPHEMERAL - _LOWEST
    first = random.randrange(count)
    for number in range(count):
        port = _LOWEST + (first + number) % count
        if _reserve(port):
            yield port
    yield 0


@cache
def _reservations() -> int:
    """A file of which each byte stands for a port, and is locked by whoever was given it."""
    path = Path(tempfile.gettempdir()) / f"trunkline-ports-{os.getuid()}"
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)


def _reserve(port: int) -> bool:
    """Whether neither this process has had it nor another one has it. Never where there are no such locks."""
    if fcntl is None or port in _given:
        return False
    try:
        fcntl.lockf(_reservations(), fcntl.LOCK_EX | fcntl.LOCK_NB, 1, port)
    except OSError:
        return False
    _given.add(port)
    return True
