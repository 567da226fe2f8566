"""Locks on files beside the database: which gateway runs on a state, and who has it open.

They wait for a while, and raise StateError.
"""

import time
from pathlib import Path

from gateway.domain.state_dir import PID_NAME
from gateway.storage.errors import StateBusy, StateInUse, StateUnwritable
from shared.process.file_lock import FileLock, LockHolder

WAIT_S = 2.0
"""For a gateway that was killed a moment ago: its lock ends when the kernel has taken it down."""

_RETRY_S = 0.02


class Lock(FileLock):
    """A lock on a file for which one may wait."""

    def __init__(self, path: Path, *, create: bool = True) -> None:
        """Makes the file, mode 0600, unless ``create`` is False. Raises StateUnwritable."""
        self._path = path
        try:
            super().__init__(path, create=create)
        except OSError as error:
            raise StateUnwritable.opening(path, error) from error

    def take(self, *, exclusive: bool, wait_s: float) -> bool:
        """Have it alone or with others, also instead of what is held now; False when that cannot be had
        within ``wait_s``."""
        deadline_s = time.monotonic() + wait_s
        while not self.try_take(exclusive=exclusive):
            if time.monotonic() > deadline_s:
                return False
            time.sleep(_RETRY_S)
        return True


class Holding(Lock):
    """Who has the state open: everybody shares it, and who puts a backup in its place has it alone."""

    def share(self, wait_s: float) -> None:
        """Hold it with others. Raises StateBusy when somebody has it alone for so long."""
        if not self.take(exclusive=False, wait_s=wait_s):
            raise StateBusy(f"the state beside {self._path} is being restored: try again")

    def alone(self, wait_s: float) -> bool:
        """Hold it alone; False when others have it open for so long."""
        return self.take(exclusive=True, wait_s=wait_s)


class ServerLock(Lock):
    """Held by the one gateway that runs on a state directory, in ``gateway.pid`` there with its process and
    host. The operating system ends it with the process, however that ends.

    It belongs to the open file, not to the process: workers of one gateway may inherit and hold it together.
    Where there are no such locks (some network file systems), nothing is locked.
    """

    def __init__(self, state_dir: Path, wait_s: float = WAIT_S) -> None:
        """Raises StateInUse, which names who has it, and StateUnwritable."""
        super().__init__(state_dir / PID_NAME)
        try:
            if not self.take(exclusive=True, wait_s=wait_s):
                raise StateInUse(
                    f"a gateway runs on {state_dir} already ({self.holder()}), and two of them would "
                    "serve half of the agents each: stop that one first, or give this one another --state"
                )
            self.sign()
        except OSError as error:
            self.close()
            raise StateUnwritable(f"cannot write {self._path} ({error.strerror})") from error
        except BaseException:
            self.close()
            raise


def running_gateway(state_dir: Path) -> LockHolder | None:
    """Who runs on this state, None if nobody does or it cannot be told."""
    try:
        lock = Lock(state_dir / PID_NAME, create=False)
    except StateUnwritable:
        return None
    try:
        return None if lock.take(exclusive=False, wait_s=0.0) else lock.holder()
    finally:
        lock.close()
