"""Who has the state open: everybody shares it, and who puts a backup in its place has it alone."""

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


class Holding:
    """A lock beside the database, held while a store is open. The operating system ends it with the process.

    Where there are no such locks (some network file systems), nothing is locked.
    """

    def __init__(self, path: Path) -> None:
        """Raises StateUnwritable."""
        self._path = path
        try:
            self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise StateUnwritable(
                f"cannot open {path} ({error.strerror}): run as the user that owns the state directory"
            ) from error

    def share(self, wait_s: float) -> None:
        """Hold it with others. Raises StateBusy when somebody has it alone for so long."""
        if not self._lock(exclusive=False, wait_s=wait_s):
            raise StateBusy(f"the state beside {self._path} is being restored: try again")

    def alone(self, wait_s: float) -> bool:
        """Hold it alone; False when others have it open for so long."""
        return self._lock(exclusive=True, wait_s=wait_s)

    def close(self) -> None:
        """Let go. Idempotent."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def _lock(self, *, exclusive: bool, wait_s: float) -> bool:
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
