"""Which gateway runs on a state: at most one process at once, by a lock that ends with it."""

import os
import socket
from dataclasses import dataclass
from pathlib import Path

from gateway.store.errors import StateInUse, StateUnwritable
from gateway.store.locks import Lock

PID_NAME = "gateway.pid"
WAIT_S = 2.0
"""For a gateway that was killed a moment ago: its lock ends when the kernel has taken it down."""

_MOST_BYTES = 512


@dataclass(frozen=True, slots=True)
class RunningGateway:
    """The process that holds the lock, as it has written itself down. Empty and 0 where it has not yet."""

    pid: int
    host: str

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host}" if self.pid else "another process"


class ServerLock:
    """Held by the one gateway that runs on a state directory, in ``gateway.pid`` there with its process and
    host. The operating system ends it with the process, however that ends.

    It belongs to the open file, not to the process: workers of one gateway may inherit and hold it together.
    Where there are no such locks (some network file systems), nothing is locked.
    """

    def __init__(self, state_dir: Path, wait_s: float = WAIT_S) -> None:
        """Raises StateInUse, which names who has it, and StateUnwritable."""
        self._path = state_dir / PID_NAME
        self._lock = Lock(self._path)
        if not self._lock.take(exclusive=True, wait_s=wait_s):
            self._lock.close()
            raise StateInUse(
                f"a gateway runs on {state_dir} already ({_read(self._path)}), and two of them would serve "
                "half of the agents each: stop that one first, or give this one another --state"
            )
        try:
            self._lock.write(f"{os.getpid()}\n{socket.gethostname()}\n".encode())
        except OSError as error:
            self._lock.close()
            raise StateUnwritable(f"cannot write {self._path} ({error.strerror})") from error

    def close(self) -> None:
        """Let go. Idempotent."""
        self._lock.close()


def running_gateway(state_dir: Path) -> RunningGateway | None:
    """Who runs on this state, None if nobody does or it cannot be told."""
    path = state_dir / PID_NAME
    try:
        lock = Lock(path, create=False)
    except StateUnwritable:
        return None
    try:
        return None if lock.take(exclusive=False, wait_s=0.0) else _read(path)
    finally:
        lock.close()


def _read(path: Path) -> RunningGateway:
    try:
        with path.open("rb") as file:
            pid, host = file.read(_MOST_BYTES).decode("utf-8", "replace").split("\n")[:2]
        return RunningGateway(int(pid), host)
    except (OSError, ValueError):
        return RunningGateway(0, "")
