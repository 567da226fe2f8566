"""The part of one answer that waits in the file, and the part that follows it in memory."""

from collections import deque
from collections.abc import Callable

from gateway.dispatch.response_buffers.chunks import ChunkQueue
from gateway.dispatch.response_buffers.file import BLOCK_BYTES, Extent, SpillFile
from gateway.dispatch.response_buffers.space import SpillSpace
from shared.protocol.limits import KIB

WRITE_BYTES = 256 * KIB
"""Bytes that are written at once; a longer piece is written alone."""


class SpillQueue:
    """Bytes in order: those in the file, then those that are being written, then those that wait for it.

    Whoever puts them in bounds how many wait. Belongs to the event loop's thread.
    """

    def __init__(self, space: SpillSpace, key: str, tenant: str) -> None:
        self._space = space
        self._key = key
        self._tenant = tenant
        self._file: SpillFile | None = None
        self._written: deque[Extent] = deque()
        self._writing: list[bytes] | None = None
        """What is being written, unless its reader has taken it meanwhile."""
        self._places: list[Extent] | None = None
        """Where that is written."""
        self._tail = ChunkQueue()
        self._fetched = b""
        """Bytes that were read from the file and that the reader has not taken yet."""
        self._fetching = False
        self._error: Exception | None = None
        """Why the file cannot be read."""
        self._held_bytes = 0
        self._closed = False

    def __bool__(self) -> bool:
        return bool(self._fetched or self._written or self._writing or self._tail)

    @property
    def in_file(self) -> bool:
        """Whether some of it is in the file, or will be soon."""
        return bool(self._written or self._writing)

    @property
    def writes(self) -> bool:
        """Whether something is being written."""
        return self._places is not None

    def put(self, data: bytes) -> None:
        """``data`` is not empty."""
        self._tail.put(data)

    def write(self, done: Callable[[int], None]) -> bool:
        """Have what waits written, unless something is written already. False: there is no room for it.

        Then ``done`` is told how many bytes went from memory to the file: 0 if they could not be written, or
        their reader took them."""
        if self._places is not None or self._closed:
            return True
        pieces = self._tail.take(WRITE_BYTES)
        if not pieces:
            return True
        size_bytes = sum(map(len, pieces))
        allocated = self._space.allocate(self._key, self._tenant, self._held_bytes, size_bytes)
        if allocated is None:
            self._tail.put_back(pieces)
            return False
        self._file, self._places = allocated
        self._writing = pieces
        self._held_bytes += _held(self._places)
        self._space.write(
            self._file, self._places, pieces, lambda written: self._wrote(written, size_bytes, done)
        )
        return True

    @property
    def ready(self) -> bool:
        """Whether :meth:`take` has something; else :meth:`fetch` is needed, if there is anything at all."""
        if self._fetched or self._error is not None:
            return True
        return not self._written and bool(self._writing or self._tail)

    def fetch(self, done: Callable[[], None]) -> None:
        """Have the oldest bytes read from the file, unless they are; ``done`` is called when they were."""
        if self._fetching or self.ready or not self._written:
            return
        assert self._file is not None
        self._fetching = True

        def tell(data: bytes | None, error: Exception | None) -> None:
            self._fetching = False
            if self._closed:
                self._free([self._written.popleft()])
                return
            if data is None:
                self._error = error
            else:
                self._fetched = data
                self._free([self._written.popleft()])
            done()

        self._space.read(self._file, self._written[0], tell)

    def take(self, most_bytes: int) -> list[bytes]:
        """The oldest pieces, none empty, about ``most_bytes`` at most. To be called when :attr:`ready`.
        Raises OSError when they could not be read."""
        if self._error is not None:
            raise OSError("it could not be read from the file") from self._error
        if self._fetched:
            data, self._fetched = self._fetched, b""
            return [data]
        if self._writing is not None:
            pieces, self._writing = self._writing, None
            return pieces
        return self._tail.take(most_bytes)

    def close(self) -> None:
        """Discard everything and free the blocks in the file, those that are being read once they were."""
        self._closed = True
        self._tail.clear()
        self._writing = None
        self._fetched = b""
        extents = [self._written.pop() for _ in range(len(self._written) - self._fetching)]
        if extents:
            self._free(extents)

    def _wrote(self, written: bool, size_bytes: int, done: Callable[[int], None]) -> None:
        pieces, self._writing = self._writing, None
        places, self._places = self._places, None
        assert places is not None
        if pieces is not None and written:
            self._written.extend(places)
        else:
            if pieces is not None:
                self._tail.put_back(pieces)
            self._free(places)
        if not self._closed:
            done(size_bytes if pieces is not None and written else 0)

    def _free(self, extents: list[Extent]) -> None:
        assert self._file is not None
        self._held_bytes -= _held(extents)
        self._space.free(self._key, self._tenant, self._file, extents)


def _held(extents: list[Extent]) -> int:
    return BLOCK_BYTES * sum(len(each.blocks) for each in extents)
