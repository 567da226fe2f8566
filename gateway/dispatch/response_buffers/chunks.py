"""What came of a body and waits for its reader."""

from collections import deque
from collections.abc import Sequence

BLOCK_BYTES = 16 * 1024
"""Small pieces are joined to blocks of about this size, so that a token that waits costs its bytes and no
object of its own. Each byte is joined once, however much waits."""

PIECES = 1024
"""So many pieces are joined to a block whatever their size: a peer may send single bytes."""


class ChunkQueue:
    """Bytes in order. Whoever puts them in bounds how many there are."""

    __slots__ = ("_fresh_bytes", "blocks", "fresh")

    def __init__(self) -> None:
        self.blocks: deque[bytes] | None = None
        """The oldest; None: all are in ``fresh``."""
        self.fresh: list[bytes] = []
        """The latest, not yet joined."""
        self._fresh_bytes = 0

    def __bool__(self) -> bool:
        return bool(self.fresh or self.blocks)

    def put(self, data: bytes) -> None:
        """``data`` is not empty."""
        fresh = self.fresh
        fresh.append(data)
        self._fresh_bytes += len(data)
        if self._fresh_bytes >= BLOCK_BYTES or len(fresh) >= PIECES:
            if self.blocks is None:
                self.blocks = deque()
            self.blocks.append(fresh[0] if len(fresh) == 1 else b"".join(fresh))
            fresh.clear()
            self._fresh_bytes = 0

    def take(self, most_bytes: int) -> list[bytes]:
        """The oldest pieces, as many as there are in ``most_bytes``, but one at least if there is any."""
        blocks = self.blocks
        if not blocks:  # nearly always
            fresh, self.fresh, self._fresh_bytes = self.fresh, [], 0
            return fresh
        taken = [blocks.popleft()]
        room_bytes = most_bytes - len(taken[0])
        while blocks and len(blocks[0]) <= room_bytes:
            room_bytes -= len(blocks[0])
            taken.append(blocks.popleft())
        if not blocks and self._fresh_bytes <= room_bytes:
            taken += self._take_fresh()
        return taken

    def take_last(self, least_bytes: int) -> list[bytes]:
        """The latest pieces, in order, so many that they have ``least_bytes`` together, or all there are."""
        taken = self._take_fresh()
        missing_bytes = least_bytes - sum(map(len, taken))
        taken.reverse()
        while self.blocks and missing_bytes > 0:
            taken.append(self.blocks.pop())
            missing_bytes -= len(taken[-1])
        taken.reverse()
        return taken

    def put_back(self, pieces: Sequence[bytes]) -> None:
        """Pieces that were taken last are the oldest again."""
        if self.blocks is None:
            self.blocks = deque()
        self.blocks.extendleft(reversed(pieces))

    def clear(self) -> None:
        self.blocks = None
        self._take_fresh()

    def _take_fresh(self) -> list[bytes]:
        fresh, self.fresh, self._fresh_bytes = self.fresh, [], 0
        return fresh
