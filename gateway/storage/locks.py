"""Locks on files beside the database that wait, and whose trouble is the state's."""

import time
from pathlib import Path

from gateway.storage.errors import StateBusy, StateUnwritable
from shared.process.file_lock import FileLock, LockHolder

_RETRY_S = 0.02


class Lock:
    """A :class:`~shared.process.file_lock.FileLock` for which one may wait."""

    def __init__(self, path: Path, *, create: bool = True) -> None:
        """Makes the file, mode 0600, unless ``create`` is False. Raises StateUnwritable."""
        self._path = path
        try:
            self._lock = FileLock(path, create=create)
        except OSError as error:
            raise StateUnwritable.opening(path, error) from error

    def take(self, *, exclusive: bool, wait_s: float) -> bool:
        """Have it alone or with others, also instead of what is held now; False when that cannot be had
        within ``wait_s``."""
        deadline_s = time.monotonic() + wait_s
        while not self._lock.try_take(exclusive=exclusive):
            if time.monotonic() > deadline_s:
                return False
            time.sleep(_RETRY_S)
        return True

    def sign(self) -> None:
        """Write down in the file which process has it. Raises StateUnwritable."""
        try:
            self._lock.sign()
        except OSError as error:
            raise StateUnwritable(f"cannot write {self._path} ({error.strerror})") from error

    def holder(self) -> LockHolder:
        """The process that wrote itself down last."""
        return self._lock.holder()

    def close(self) -> None:
        """Let go. Idempotent."""
        self._lock.close()


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
