"""Whether anybody has changed the database: a number that requests compare, and that a thread keeps.

A gateway asks at every request, on its event loop, which may not wait for a database; so there the answer is
kept by a thread that looks ten times a second and by whoever writes in the gateway's own process. Anybody
else looks when asked.
"""

import threading
import time
from collections.abc import Callable

from gateway.storage.errors import StateError

LOOK_S = 0.1
"""Between two looks of the thread."""

KNOWN_S = 0.25
"""So long a look is good for. What was changed longer ago counts in every gateway, whatever became of its
thread; who changes something for others to go by waits for that."""


class ChangeCounter:
    """Usable from several threads."""

    def __init__(self, read: Callable[[], int], clock: Callable[[], float] = time.monotonic) -> None:
        """``read`` gives another number once anybody, in any process, has committed a change. It costs
        microseconds and raises StateError. ``clock`` is one that nobody sets."""
        self._read = read
        self._clock = clock
        self._lock = threading.Lock()
        self._seen: tuple[int, float] | None = None
        """The number, and when it was looked at; None: the latest look failed."""
        self._written_s: float | None = None
        self._thread: threading.Thread | None = None
        self._stopping = threading.Event()

    def read(self) -> int:
        """The number now. It is read from the database: not for a gateway's event loop. Raises StateError."""
        with self._lock:
            began_s = self._clock()
            try:
                number = self._read()
            except StateError:
                self._seen = None
                raise
            self._seen = number, began_s
        return number

    def cached(self) -> int | None:
        """The number as of ``KNOWN_S`` ago or later; None when :meth:`read` must be called. While nothing
        keeps it this looks itself, and raises StateError."""
        if self._thread is None:
            return self.read()
        seen = self._seen
        return None if seen is None or self._clock() - seen[1] > KNOWN_S else seen[0]

    def start_polling(self) -> None:
        """Look from a thread from now on, until :meth:`close`. Raises StateError."""
        self.read()
        self._thread = threading.Thread(target=self._run, name="changes", daemon=True)
        self._thread.start()

    def written(self) -> None:
        """This process has committed a change."""
        self._written_s = self._clock()
        if self._thread is not None:
            self._try_to_look()

    def unsettled_s(self) -> float:
        """How long it takes until what this process has committed counts in every process; 0 or less: it
        does."""
        return 0.0 if self._written_s is None else self._written_s + KNOWN_S - self._clock()

    def close(self) -> None:
        """End the thread. Idempotent."""
        self._stopping.set()
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        while not self._stopping.wait(LOOK_S):
            self._try_to_look()

    def _try_to_look(self) -> None:
        """Whoever needs the number looks again, and is told why there is none."""
        try:
            self.read()
        except StateError:
            pass
