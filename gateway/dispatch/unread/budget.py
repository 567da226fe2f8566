"""How much of what clients have not read of their answers is kept, by key, by tenant and in all.

With it an engine is done with an answer, and its slot free, whatever the client has read of it by then. What
memory has no room for goes to a file (:mod:`gateway.dispatch.unread.space`). Where that has none either,
credit holds the engine back as it always does (PROTOCOL §6.2), and readers that are too slow lose their slots
(:mod:`gateway.dispatch.slow_readers`).

A worked example, with 256 MiB of memory. A tenant may hold 128 MiB of it, a key 64 MiB, and one answer half
of what its key has free: the first of a key up to 32 MiB, the next up to 16 MiB, so that one download does
not take the memory of all other answers. A streamed answer of 8,000 tokens has about 2 MiB. While one tenant
holds all it may, the next may hold 64 MiB, the one after that 32 MiB: there is always room for one more.
"""

from collections.abc import Callable
from itertools import islice

from gateway.dispatch.unread.queue import SpillQueue
from gateway.dispatch.unread.space import SpillSpace
from gateway.dispatch.unread.tally import FairTally
from shared.protocol.limits import MIB

ASKED_AT_ONCE = 4
"""So many answers that found no room are asked again when some was given back."""


class UnreadBudget:
    """One for a gateway. Belongs to the event loop's thread."""

    def __init__(self, total_bytes: int = 256 * MIB, roomy: Callable[[], bool] = lambda: True) -> None:
        """``roomy`` says whether the machine has memory for more; 0 bytes: none is used to read ahead."""
        self.roomy = roomy
        self._memory = FairTally(total_bytes)
        self._space: SpillSpace | None = None
        self._waiting: dict[UnreadShare, Callable[[], None]] = {}
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

    def close(self) -> None:
        """Nothing more is kept; the file is closed once nothing of it is used."""
        if self._space is not None:
            self._space.close()

    def share(self, key: str, tenant: str) -> "UnreadShare":
        """An answer's, for a client with ``key`` of ``tenant``; it holds nothing yet."""
        return UnreadShare(self, key, tenant)

    def used_by_key(self, key: str) -> int:
        """Memory that answers to ``key`` hold."""
        return self._memory.used_by_key(key)

    def _freed(self) -> None:
        """Those that were refused first ask again; each says anew if it is refused again."""
        for share in list(islice(self._waiting, ASKED_AT_ONCE)):
            ask = self._waiting.pop(share, None)
            if ask is not None:
                ask()


class UnreadShare:
    """What one answer holds of the budget."""

    __slots__ = ("_budget", "held_bytes", "key", "tenant")

    def __init__(self, budget: UnreadBudget, key: str, tenant: str) -> None:
        self._budget = budget
        self.key = key
        self.tenant = tenant
        self.held_bytes = 0

    def take(self, wanted_bytes: int) -> int:
        """Holds as much more memory as there is, at most ``wanted_bytes``; gives how much that is."""
        if not self._budget.roomy():
            return 0
        memory = self._budget._memory
        size_bytes = max(0, min(wanted_bytes, memory.room_bytes(self.key, self.tenant, self.held_bytes)))
        if size_bytes:
            self.held_bytes += size_bytes
            memory.count(self.key, self.tenant, size_bytes)
        return size_bytes

    def spill_queue(self) -> SpillQueue | None:
        """Where to put what memory has no room for; None: there is no file for it."""
        space = self._budget._space
        return None if space is None else SpillQueue(space, self.key, self.tenant)

    def ask_again(self, ask: Callable[[], None]) -> None:
        """Have ``ask`` called once when something was given back, unless :meth:`close` comes before."""
        self._budget._waiting.setdefault(self, ask)

    def give_back(self, size_bytes: int) -> None:
        """The client took so many of the bytes held, or nobody wants them any more."""
        assert 0 <= size_bytes <= self.held_bytes, (size_bytes, self.held_bytes)
        if size_bytes:
            self.held_bytes -= size_bytes
            self._budget._memory.count(self.key, self.tenant, -size_bytes)
            if self._budget._waiting:
                self._budget._freed()

    def ask_no_more(self) -> None:
        """What is held was all that is wanted."""
        self._budget._waiting.pop(self, None)

    def close(self) -> None:
        """The answer is done with."""
        self.ask_no_more()
        self.give_back(self.held_bytes)
