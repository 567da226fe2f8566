"""What came of one answer and its client has not read: in memory, and behind that in a file if need be."""

from collections.abc import Callable

from gateway.dispatch.unread.budget import UnreadShare
from gateway.dispatch.unread.chunks import ChunkQueue
from gateway.dispatch.unread.queue import SpillQueue


class UnreadBuffer:
    """Bytes in order. Counts nothing but what the budget gave it; whoever puts them in bounds the rest.

    As long as some of it waits in the file, or for it, all that comes waits behind that.
    """

    __slots__ = ("_chunks", "_share", "_spilled")

    def __init__(self, share: UnreadShare | None) -> None:
        self._share = share
        self._chunks = ChunkQueue()
        self._spilled: SpillQueue | None = None

    def __bool__(self) -> bool:
        return bool(self._chunks or self._spilled)

    def put(self, data: bytes) -> None:
        """``data`` is not empty."""
        if self._spilled:
            self._spilled.put(data)
        else:
            self._chunks.put(data)

    def ready(self, wake: Callable[[], None]) -> bool:
        """Whether :meth:`take` has something. Else what there may be is read from the file, and then ``wake``
        called."""
        if self._chunks or not self._spilled:
            return bool(self._chunks)
        self._spilled.fetch(wake)
        return self._spilled.ready

    def take(self, most_bytes: int) -> list[bytes]:
        """The oldest pieces, none empty, about ``most_bytes`` at most, but one at least. To be called when
        :meth:`ready`. Raises OSError when they could not be read from the file."""
        if self._chunks or self._spilled is None:
            return self._chunks.take(most_bytes)
        return self._spilled.take(most_bytes)

    def hold(self, wanted_bytes: int) -> int:
        """Have memory hold what is here already; for how many of the bytes there is room."""
        if self._share is None or (self._spilled is not None and self._spilled.in_file):
            return 0
        return self._share.take(wanted_bytes)

    def spill(self, size_bytes: int, done: Callable[[int], None]) -> bool:
        """Have the latest ``size_bytes``, about, go to the file. False: it has no room. Else ``done`` is told
        how many went there in the end, which may be none."""
        if self._share is None:
            return False
        if self._spilled is None:
            self._spilled = self._share.spill_queue()
            if self._spilled is None:
                return False
        if not self._spilled:
            for piece in self._chunks.take_last(size_bytes):
                self._spilled.put(piece)
        return self._spilled.write(done)

    def ask_again(self, ask: Callable[[], None]) -> None:
        """Have ``ask`` called once when there may be room for more."""
        if self._share is not None:
            self._share.ask_again(ask)

    def ask_no_more(self) -> None:
        """No more is wanted."""
        if self._share is not None:
            self._share.ask_no_more()

    def read(self, size_bytes: int) -> None:
        """The client took so many bytes."""
        if self._share is not None and self._share.held_bytes:
            self._share.give_back(min(size_bytes, self._share.held_bytes))

    def clear(self) -> None:
        """Nobody wants any of it."""
        self._chunks.clear()
        if self._spilled is not None:
            self._spilled.close()
            self._spilled = None
        if self._share is not None:
            self._share.close()
