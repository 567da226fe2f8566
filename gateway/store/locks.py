"""Locks on files beside the database: the operating system ends them with the process that holds them."""

import errno
import os
import time
from pathlib import Path

from gateway.store.errors import StateBusy, StateUnwritable

try:
    import fcntl
except ImportError:  # pragma: no cover - no such locks here
    fcntl = None  # type: ignore[assignment]

_RETRY_S = 0.02
_HELD = (errno.EWOULDBLOCK, errno.EAGAIN, errno.EACCES)


class Lock:
    """A lock on a file, which several may share or one have alone.

    Where there are no such locks (some network file systems), nothing is locked.
    """

    def __init__(self, path: Path, *, create: bool = True) -> None:
        """Makes the file, mode 0600, unless ``create`` is False. Raises StateUnwritable."""
        flags = os.O_RDWR | os.O_CLOEXEC | getattr(os, "O_NOFOLLOW", 0)
        try:
            self._file = os.open(path, flags | (os.O_CREAT if create else 0), 0o600)
        except OSError as error:
            raise StateUnwritable.opening(path, error) from error

    def take(self, *, exclusive: bool, wait_s: float) -> bool:
        """Have it alone or with others, also instead of what is held now; False when that cannot be had
        within ``wait_s``."""
        if fcntl is None:
            return True
        deadline_s = time.monotonic() + wait_s
        while True:
            try:
                fcntl.flock(self._file, (fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH) | fcntl.LOCK_NB)
            except OSError as error:
                if error.errno not in _HELD:
                    return True
                if time.monotonic() > deadline_s:
                    return False
                time.sleep(_RETRY_S)
            else:
                return True

    def write(self, content: bytes) -> None:
        """Have the file hold this, and nothing else. Raises OSError."""
        os.ftruncate(self._file, 0)
        os.pwrite(self._file, content, 0)

    def close(self) -> None:
        """Let go. Idempotent."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1


class Holding:
    """Who has the state open: everybody shares it, and who puts a backup in its place has it alone."""

    def __init__(self, path: Path) -> None:
        """Raises StateUnwritable."""
        self._path = path
        self._lock = Lock(path)

    def share(self, wait_s: float) -> None:
        """Hold it with others. Raises StateBusy when somebody has it alone for so long."""
        if not self._lock.take(exclusive=False, wait_s=wait_s):
            raise StateBusy(f"the state beside {self._path} is being restored: try again")

    def alone(self, wait_s: float) -> bool:
        """Hold it alone; False when others have it open for so long."""
        return self._lock.take(exclusive=True, wait_s=wait_s)

    def close(self) -> None:
        """Let go. Idempotent."""
        self._lock.close()
