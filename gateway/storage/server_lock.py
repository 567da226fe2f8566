"""Which gateway runs on a state: at most one process at once, by a lock that ends with it."""

from pathlib import Path

from gateway.storage.errors import StateInUse, StateUnwritable
from gateway.storage.locks import Lock
from shared.process.file_lock import LockHolder

PID_NAME = "gateway.pid"
WAIT_S = 2.0
"""For a gateway that was killed a moment ago: its lock ends when the kernel has taken it down."""


class ServerLock:
    """Held by the one gateway that runs on a state directory, in ``gateway.pid`` there with its process and
    host. The operating system ends it with the process, however that ends.

    It belongs to the open file, not to the process: workers of one gateway may inherit and hold it together.
    Where there are no such locks (some network file systems), nothing is locked.
    """

    def __init__(self, state_dir: Path, wait_s: float = WAIT_S) -> None:
        """Raises StateInUse, which names who has it, and StateUnwritable."""
        self._lock = Lock(state_dir / PID_NAME)
        try:
            if not self._lock.take(exclusive=True, wait_s=wait_s):
                raise StateInUse(
                    f"a gateway runs on {state_dir} already ({self._lock.holder()}), and two of them would "
                    "serve half of the agents each: stop that one first, or give this one another --state"
                )
            self._lock.sign()
        except BaseException:
            self._lock.close()
            raise

    def close(self) -> None:
        """Let go. Idempotent."""
        self._lock.close()


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
