"""Whether anybody has changed the database: a number that requests compare, and that a thread keeps.

A gateway asks at every request, on its event loop, which may not wait for a database; so there the answer is
kept by a thread that looks ten times a second and by whoever writes in the gateway's own process. Anybody
else looks when asked.
"""

import threading
import time
from collections.abc import Callable

from gateway.storage.errors import StateError, StateUnreachable

LOOK_S = 0.1
"""Between two looks of the thread."""

SOURCE = 2**48
"""What is added to a number of changes for each server, or connection to one, that it came from before: a
standby may take a primary's place without its latest changes, and come to the same number with others."""

KNOWN_S = 0.25
"""So long a look is good for. What was changed longer ago counts in every gateway, whatever became of its
thread; who changes something for others to go by waits for that."""


class ChangeCounter:
    """Usable from several threads."""

    def __init__(
        self,
        read: Callable[[], int],
        clock: Callable[[], float] = time.monotonic,
        *,
        look_s: float | None = None,
        known_s: float | None = None,
        stale_s: float = 0.0,
        wait: Callable[[float, threading.Event], None] | None = None,
    ) -> None:
        """``read`` gives another number once anybody, in any process, has committed a change; it raises
        StateError. ``clock`` is one that nobody sets.

        The thread looks every ``look_s`` (None: ``LOOK_S``), or as soon as ``wait`` returns, which waits so
        long at most for news or the event. A look is good for ``known_s`` (None: ``KNOWN_S``).
        While ``read`` raises
        StateUnreachable, the latest number stays good for ``stale_s`` once the thread runs."""
        self._read = read
        self._clock = clock
        self._look_s = look_s
        self._given_known_s = known_s
        self._stale_s = stale_s
        self._wait = wait
        self._latest: tuple[int, float] | None = None
        """The latest number there was, and when it was looked at."""
        self._away: tuple[StateUnreachable, float] | None = None
        """Why the database cannot be reached, and when that was last tried; None: it can."""
        self._lock = threading.Lock()
        self._seen: tuple[int, float] | None = None
        """The number, and when it was looked at; None: the latest look failed."""
        self._written_s: float | None = None
        self._thread: threading.Thread | None = None
        self._stopping = threading.Event()
        self._listeners: list[Callable[[], None]] = []

    def listen(self, listener: Callable[[], None]) -> Callable[[], None]:
        """``listener`` is called in the thread that looks, after each look that finds another number than the
        one before it; it raises nothing. Call what is returned to end that."""
        self._listeners = [*self._listeners, listener]

        def end() -> None:
            self._listeners = [each for each in self._listeners if each is not listener]

        return end

    @property
    def away(self) -> StateUnreachable | None:
        """Why the database cannot be reached, as the thread knows from its latest look; None: it can be, or
        no thread looks."""
        away = self._away
        return None if away is None or self._thread is None else away[0]

    def read(self) -> int:
        """The number now; while the database cannot be reached and for ``stale_s`` at most, the latest one.
        It is read from the database: not for a gateway's event loop. Raises StateError."""
        with self._lock:
            began_s = self._clock()
            away = self._away
            if away is not None and self.away is not None and began_s - away[1] < self._interval_s:
                return self._latest_or_raise(away[0])  # whoever looks next tries again
            try:
                number = self._read()
            except StateUnreachable as error:
                self._seen = None
                self._away = error, self._clock()
                return self._latest_or_raise(error)
            except StateError:
                self._seen = None
                raise
            self._away = None
            self._seen = self._latest = number, began_s
        return number

    def cached(self) -> int | None:
        """The number as of ``known_s`` ago or later; None when :meth:`read` must be called. While nothing
        keeps it this looks itself, and raises StateError. While the database cannot be reached it is the
        latest one, for ``stale_s``."""
        if self._thread is None:
            return self.read()
        seen, known_s = self._seen, self._given_known_s
        if seen is not None and self._clock() - seen[1] <= (KNOWN_S if known_s is None else known_s):
            return seen[0]
        return self._still_good() if self._away is not None else None

    def start_polling(self) -> None:
        """Look from a thread from now on, until :meth:`close`. Idempotent. Raises StateError."""
        if self._thread is not None:
            return  # two would share what ``wait`` waits on
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
        return 0.0 if self._written_s is None else self._written_s + self._known_s - self._clock()

    def close(self) -> None:
        """End the thread. Idempotent."""
        self._stopping.set()
        if self._thread is not None:
            self._thread.join()

    @property
    def _known_s(self) -> float:
        return KNOWN_S if self._given_known_s is None else self._given_known_s

    @property
    def _interval_s(self) -> float:
        return LOOK_S if self._look_s is None else self._look_s

    def _still_good(self) -> int | None:
        """The latest number while the database is away, None once that is too old."""
        latest = self._latest
        if latest is None or self._thread is None or self._clock() - latest[1] > self._stale_s:
            return None
        return latest[0]

    def _latest_or_raise(self, error: StateUnreachable) -> int:
        number = self._still_good()
        if number is None:
            raise StateUnreachable(str(error))
        return number

    def _run(self) -> None:
        wait, told = self._wait or _pause, self._latest
        while not self._stopping.is_set():
            wait(self._interval_s, self._stopping)
            if self._stopping.is_set():
                return
            self._try_to_look()
            if (latest := self._latest) is not None and (told is None or latest[0] != told[0]):
                told = latest
                for listener in self._listeners:
                    listener()

    def _try_to_look(self) -> None:
        """Whoever needs the number looks again, and is told why there is none."""
        try:
            self.read()
        except StateError:
            pass


def _pause(at_most_s: float, stopping: threading.Event) -> None:
    stopping.wait(at_most_s)
