"""What clients have not read of their answers, and how much of it is kept, by key, by tenant and in all.

With it an engine is done with an answer, and its slot free, whatever the client has read of it by then. What
memory has no room for goes to a file (:mod:`gateway.dispatch.response_buffers.space`). Where that has none
either, credit holds the engine back as it always does (PROTOCOL §6.2), and readers that are too slow lose
their slots (:mod:`gateway.dispatch.slow_readers`).

A worked example, with 256 MiB of memory. A tenant may hold 128 MiB of it, a key 64 MiB, and one answer half
of what its key has free: the first of a key up to 32 MiB, the next up to 16 MiB, so that one download does
not take the memory of all other answers. A streamed answer of 8,000 tokens has about 2 MiB. While one tenant
holds all it may, the next may hold 64 MiB, the one after that 32 MiB: there is always room for one more.
"""

from collections.abc import Callable
from itertools import islice

from gateway.dispatch.response_buffers.chunks import ChunkQueue
from gateway.dispatch.response_buffers.fair_share import FairShareCounter
from gateway.dispatch.response_buffers.queue import SpillQueue
from gateway.dispatch.response_buffers.space import SpillSpace
from gateway.domain.request import Principal
from shared.protocol.limits import MIB

ASKED_AT_ONCE = 4
"""So many answers that found no room are asked again when some was given back."""


class UnreadBudget:
    """One for a gateway. Belongs to the event loop's thread."""

    def __init__(self, total_bytes: int = 256 * MIB, roomy: Callable[[], bool] = lambda: True) -> None:
        """``roomy`` says whether the machine has memory for more; 0 bytes: none is used to read ahead."""
        self.roomy = roomy
        self._memory = FairShareCounter(total_bytes)
        self._space: SpillSpace | None = None
        self._waiting: dict[UnreadBuffer, Callable[[], None]] = {}
        """Those that were refused, the first to be asked first. Not more than there are answers."""

    @property
    def used_bytes(self) -> int:
        """Memory that all answers hold."""
        return self._memory.used_bytes

    @property
    def spilled_bytes(self) -> int:
        """What all answers hold of the file."""
        return self._space.used_bytes if self._space is not None else 0

    def spill_to(self, space: SpillSpace) -> None:
        """From now on ``space`` takes what memory has no room for."""
        self._space = space
        space.when_freed(self._freed)

    def has_room_again(self) -> None:
        """``roomy`` says so: all that were refused ask again."""
        self._ask(len(self._waiting))

    def close(self) -> None:
        """Nothing more is kept; the file is closed once nothing of it is used."""
        if self._space is not None:
            self._space.close()

    def _freed(self) -> None:
        """Those that were refused first ask again; each says anew if it is refused again."""
        self._ask(ASKED_AT_ONCE)

    def _ask(self, most: int) -> None:
        for buffer in list(islice(self._waiting, most)):
            ask = self._waiting.pop(buffer, None)
            if ask is not None:
                ask()


class UnreadBuffer:
    """The bytes of one answer, in order: in memory, and behind that in a file if need be.

    Counts nothing but what the budget gave it; whoever puts them in bounds the rest. As long as some of it
    waits in the file, or for it, all that comes waits behind that.
    """

    __slots__ = ("_budget", "_chunks", "_held_bytes", "_key", "_spilled", "_tenant")

    def __init__(self, budget: UnreadBudget | None, reader: Principal | None) -> None:
        """For an answer to ``reader``. Without a budget nothing is read ahead."""
        self._budget = budget or UnreadBudget(0)
        self._key, self._tenant = ("", "") if reader is None else (reader.key_id, reader.tenant)
        self._held_bytes = 0
        """What it holds of the budget's memory."""
        self._chunks = ChunkQueue()
        self._spilled: SpillQueue | None = None

    def __bool__(self) -> bool:
        chunks = self._chunks
        return True if chunks.fresh or chunks.blocks else bool(self._spilled)

    def put(self, data: bytes) -> None:
        """``data`` is not empty."""
        if self._spilled:
            self._spilled.put(data)
        else:
            self._chunks.put(data)

    def ready(self, wake: Callable[[], None]) -> bool:
        """Whether :meth:`take` has something. Else what there may be is read from the file, and then ``wake``
        called."""
        chunks = self._chunks
        if chunks.fresh or chunks.blocks:
            return True
        if not self._spilled:
            return False
        self._spilled.fetch(wake)
        return self._spilled.ready

    def take(self, most_bytes: int) -> list[bytes]:
        """The oldest pieces, none empty, about ``most_bytes`` at most, but one at least. To be called when
        :meth:`ready`. Raises OSError when they could not be read from the file."""
        chunks = self._chunks
        if chunks.fresh or chunks.blocks or self._spilled is None:
            return chunks.take(most_bytes)
        return self._spilled.take(most_bytes)

    def take_memory(self, most_bytes: int) -> list[bytes] | None:
        """The pieces, about ``most_bytes`` at most; None, and nothing is taken, if some wait in the file, or
        for it."""
        return None if self._spilled else self._chunks.take(most_bytes)

    def hold(self, wanted_bytes: int) -> int:
        """Have memory hold what is here already; for how many of the bytes there is room."""
        if (self._spilled is not None and self._spilled.in_file) or not self._budget.roomy():
            return 0
        memory = self._budget._memory
        room_bytes = memory.room_bytes(self._key, self._tenant, self._held_bytes)
        size_bytes = wanted_bytes if wanted_bytes < room_bytes else room_bytes
        if size_bytes <= 0:
            return 0
        self._held_bytes += size_bytes
        memory.count(self._key, self._tenant, size_bytes)
        return size_bytes

    def spill(self, size_bytes: int, done: Callable[[int], None]) -> bool:
        """Have the latest ``size_bytes``, about, go to the file. False: it has no room. Else ``done`` is told
        how many went there in the end, which may be none."""
        if self._spilled is None:
            if self._budget._space is None:
                return False
            self._spilled = SpillQueue(self._budget._space, self._key, self._tenant)
        if not self._spilled:
            for piece in self._chunks.take_last(size_bytes):
                self._spilled.put(piece)
        return self._spilled.write(done)

    @property
    def spilling(self) -> bool:
        """Something is on its way to the file, of which ``done`` will be told."""
        return self._spilled is not None and self._spilled.writes

    def ask_again(self, ask: Callable[[], None]) -> None:
        """Have ``ask`` called once when memory was given back, unless :meth:`ask_no_more` is called
        before."""
        self._budget._waiting.setdefault(self, ask)

    def ask_no_more(self) -> None:
        """No more memory is wanted."""
        self._budget._waiting.pop(self, None)

    def read(self, size_bytes: int) -> None:
        """The client took ``size_bytes``, or they were discarded: give their memory back."""
        if size_bytes > self._held_bytes:
            size_bytes = self._held_bytes
        if size_bytes:
            self._held_bytes -= size_bytes
            self._budget._memory.count(self._key, self._tenant, -size_bytes)
            if self._budget._waiting:
                self._budget._freed()

    def clear(self) -> None:
        """Discard everything that waits, and give its memory and its blocks back."""
        self._chunks.clear()
        if self._spilled is not None:
            self._spilled.close()
            self._spilled = None
        self.ask_no_more()
        self.read(self._held_bytes)
