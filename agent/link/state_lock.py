"""Keeps a second agent out of a state directory: with one identity, two would end each other's tunnels."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

from agent.link.member_record import MembershipError
from shared.process.file_lock import FileLock

LOCK_FILE = "agent.lock"


@contextlib.contextmanager
def locked(directory: Path) -> Iterator[None]:
    """The state directory (made, mode 0700, where there is none) is this process's alone meanwhile.

    ``agent.lock`` in it tells process and host; its lock ends with the process, however that ends. Raises
    :class:`MembershipError` when another agent runs on the directory, and when it cannot be used.
    """
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise MembershipError(f"the state directory {directory} cannot be used: {error.strerror}") from error
    path = directory / LOCK_FILE
    try:
        lock = FileLock(path)
    except OSError as error:
        raise MembershipError(f"{path} cannot be written: {error.strerror}") from error
    with contextlib.closing(lock):
        if not lock.try_take(exclusive=True):
            raise MembershipError(
                f"another agent runs on {directory} already ({lock.holder()}), and two with one identity "
                "would end each other's tunnels: stop that one first, or give this one a --state of its own"
            )
        with contextlib.suppress(OSError):  # a full disk: an agent that has joined can work all the same
            lock.sign()
        yield
