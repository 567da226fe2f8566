"""Sends a response's body in few pieces, where the gateway says that nobody reads it before it is whole.

The answer of a job is kept until it is put together. A message for each of its tokens would cost both ends a
wake-up. The first piece is sent at once, because it says that the engine has begun.
"""

from collections.abc import Callable

from shared.process.timers import CallLater, Cancellable
from shared.protocol.errors import LocalError

MOST_S = 1.0
"""The longest that anything is held back, whatever a gateway asks for."""

GATHERED_BYTES = 8 * 1024
"""So much is sent at once."""


class GatheredBody:
    """Of one response. Belongs to the event loop's thread."""

    def __init__(
        self,
        send: Callable[[bytes], bool],
        gather_s: float,
        failed: Callable[[LocalError], None],
        call_later: CallLater,
    ) -> None:
        """``send`` takes bytes and says whether it takes more, as :meth:`shared.protocol.endpoint.Stream.
        send_data`; nothing waits for longer than ``gather_s``. ``failed`` is told what ``send`` raised when
        nobody had called."""
        self.ready = True
        """More is taken. While it is not, what comes waits for :meth:`writable`."""
        self._send = send
        self._gather_s = min(gather_s, MOST_S)
        self._failed = failed
        self._call_later = call_later
        self._pieces: list[bytes] = []
        self._size_bytes = 0
        self._timer: Cancellable | None = None
        self._begun = False

    def send(self, data: bytes) -> bool:
        """Take the next bytes. False: no more is wanted until :meth:`writable` has said so. Raises
        LocalError."""
        self._pieces.append(data)
        self._size_bytes += len(data)
        if not self.ready:
            return False
        if not self._begun or self._size_bytes >= GATHERED_BYTES:
            self._begun = True
            return self._send_all()
        if self._timer is None:
            self._timer = self._call_later(self._gather_s, self._send_unasked)
        return True

    def writable(self) -> bool:
        """The stream takes more. Whether it still does now that what waited has been sent."""
        self.ready = True
        self._send_unasked()
        return self.ready

    def take(self) -> bytes:
        """What waits, to be sent with the end; nothing is sent from here any more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        pieces, self._pieces, self._size_bytes = self._pieces, [], 0
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def _send_all(self) -> bool:
        data = self.take()
        if data:
            self.ready = self._send(data)
        return self.ready

    def _send_unasked(self) -> None:
        try:
            self._send_all()
        except LocalError as error:
            self.ready = False
            self._failed(error)
