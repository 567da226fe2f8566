"""What is said of a request's progress, and how often (PROTOCOL §4.12)."""

import asyncio
from collections.abc import Callable

from shared.protocol.errors import LocalError
from shared.protocol.progress import Progress, newest

EVERY_S = 0.05
"""Progress of one request is said no more often: people look at it. What comes meanwhile waits, and only the
newest of it is said."""


class ProgressReporter:
    """Says the newest of one request. ``send`` says whether it was taken, or raises LocalError when the
    stream is over; ``call_later`` is the event loop's."""

    def __init__(
        self,
        send: Callable[[Progress], bool],
        call_later: Callable[[float, Callable[[], None]], asyncio.TimerHandle],
    ) -> None:
        self._send = send
        self._call_later = call_later
        self._newest: Progress | None = None
        """Not said yet."""
        self._said: Progress | None = None
        """Of which all but the preview is said."""
        self._timer: asyncio.TimerHandle | None = None
        """There while it is too early for more."""

    def report(self, progress: Progress) -> None:
        """This replaces what was not said yet; a preview stays the newest until there is a newer one."""
        self._newest = newest(self._newest, progress)
        if self._timer is None:
            self._say()

    def stop(self) -> None:
        """Nothing more is said: the request is over."""
        self._newest = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _say(self) -> None:
        self._timer = None
        if self._newest is None:
            return
        try:
            if self._send(self._newest):
                self._newest = None
            elif self._newest != self._said and self._newest.preview is not None:
                self._say_words(self._newest)
        except LocalError:
            self.stop()
        else:
            self._timer = self._call_later(EVERY_S, self._say)

    def _say_words(self, progress: Progress) -> None:
        """There is no room for its preview now, which is said later, unless a newer one comes. Raises
        LocalError."""
        if self._send(Progress(progress.fraction, progress.text)):
            self._said = progress
