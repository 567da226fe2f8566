"""A lock on a file, and in the file who holds it. The operating system ends the lock with the processes that
hold it, however they end, so nothing is ever left behind that must be removed by hand."""

import errno
import os
import platform
from dataclasses import dataclass
from pathlib import Path

try:
    import fcntl
except ImportError:  # pragma: no cover - Windows
    fcntl = None  # type: ignore[assignment]

_HELD = (errno.EWOULDBLOCK, errno.EAGAIN, errno.EACCES)
_HOLDER_BYTES = 512


@dataclass(frozen=True, slots=True)
class LockHolder:
    """The process that holds a lock, as it has written itself down. 0 and empty where it has not yet."""

    pid: int
    host: str

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host}" if self.pid else "another process"


class FileLock:
    """A lock on a file, which several may share or one have alone.

    It belongs to the open file and not to the process: processes that inherit the file hold it together.
    Where there are no such locks (some network file systems, Windows), everybody gets it.
    """

    def __init__(self, path: Path, *, create: bool = True) -> None:
        """Makes the file, mode 0600, unless ``create`` is False; never through a link. Raises OSError."""
        flags = os.O_RDWR | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NOFOLLOW", 0)
        self._file = os.open(path, flags | (os.O_CREAT if create else 0), 0o600)

    def fileno(self) -> int:
        """The file's descriptor, for processes that are to hold the lock as well; -1 once it is closed."""
        return self._file

    def try_take(self, *, exclusive: bool) -> bool:
        """Take it, alone or shared, also in place of what is held now. False while others are in the way."""
        if fcntl is None:
            return True
        try:
            fcntl.flock(self._file, (fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH) | fcntl.LOCK_NB)
        except OSError as error:
            return error.errno not in _HELD
        return True

    def sign(self) -> None:
        """Write this process and its host into the file, for :meth:`holder`. Raises OSError."""
        os.ftruncate(self._file, 0)
        os.lseek(self._file, 0, os.SEEK_SET)
        os.write(self._file, f"{os.getpid()}\n{platform.node()}\n".encode())

    def holder(self) -> LockHolder:
        """Who signed last: whoever holds the lock, if it was not to be had."""
        try:
            os.lseek(self._file, 0, os.SEEK_SET)
            pid, host = os.read(self._file, _HOLDER_BYTES).decode("utf-8", "replace").split("\n")[:2]
            return LockHolder(int(pid), host)
        except (OSError, ValueError):
            return LockHolder(0, "")

    def close(self) -> None:
        """Let go. Idempotent."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1
