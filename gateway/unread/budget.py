"""Memory for answers that their clients have not read, bounded by key, by tenant and in all.

With it an engine is done with an answer, and its slot free, whatever the client has read of it by then. Where
there is none left, credit holds the engine back as it always does (PROTOCOL §6.2).

A worked example, with 256 MiB in all. A tenant may hold 128 MiB of it and a key 64 MiB. One answer gets at
most half of what its key has free: the first of a key up to 32 MiB, the next up to 16 MiB, so that one
download does not take the memory of all other answers. A streamed answer of 8,000 tokens has about 2 MiB.
"""

from collections import Counter as Tally
from collections.abc import Callable

MIB = 1024 * 1024

TENANT_SHARE = 2
"""A tenant may hold one part in so many."""

KEY_SHARE = 4
"""A key may hold one part in so many."""

ASKED_AT_ONCE = 4
"""So many answers that found no room are asked again when some memory was given back."""


class UnreadBudget:
    """One for a gateway. Belongs to the event loop's thread."""

    def __init__(self, total_bytes: int = 256 * MIB, roomy: Callable[[], bool] = lambda: True) -> None:
        """``roomy`` says whether the machine has memory for more; 0 bytes: answers are never read ahead."""
        self.total_bytes = total_bytes
        self.roomy = roomy
        self.used_bytes = 0
        self._by_key: Tally[str] = Tally()
        self._by_tenant: Tally[str] = Tally()
        self._waiting: dict[UnreadShare, Callable[[], None]] = {}
        """Those that were refused, the first to be asked first. Not more than there are answers."""

    def share(self, key: str, tenant: str) -> "UnreadShare":
        """An answer's, for a client with ``key`` of ``tenant``; it holds nothing yet."""
        return UnreadShare(self, key, tenant)

    def used_by_key(self, key: str) -> int:
        """Bytes that answers to ``key`` hold."""
        return self._by_key[key]

    def free_bytes(self, key: str, tenant: str) -> int:
        """What answers to ``key`` may still take, all together; below 0 never."""
        if not self.roomy():
            return 0
        return min(
            self.total_bytes - self.used_bytes,
            self.total_bytes // TENANT_SHARE - self._by_tenant[tenant],
            self.total_bytes // KEY_SHARE - self._by_key[key],
        )

    def _count(self, share: "UnreadShare", size_bytes: int) -> None:
        self.used_bytes += size_bytes
        for tally, name in ((self._by_key, share.key), (self._by_tenant, share.tenant)):
            tally[name] += size_bytes
            assert tally[name] >= 0, (name, tally[name])
            if not tally[name]:
                del tally[name]

    def _freed(self) -> None:
        """Those that were refused first ask again; each says anew if it is refused again."""
        for share in list(self._waiting)[:ASKED_AT_ONCE] if self._waiting else ():
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
        """Holds as much more as there is room for, at most ``wanted_bytes``; gives how much that is."""
        budget = self._budget
        # Never more in all than half of what the key would have free without this answer.
        room_bytes = (budget.free_bytes(self.key, self.tenant) - self.held_bytes) // 2
        size_bytes = max(0, min(wanted_bytes, room_bytes))
        if size_bytes:
            self.held_bytes += size_bytes
            budget._count(self, size_bytes)
        return size_bytes

    def ask_again(self, ask: Callable[[], None]) -> None:
        """Have ``ask`` called once when memory was given back, unless :meth:`close` comes before."""
        self._budget._waiting.setdefault(self, ask)

    def give_back(self, size_bytes: int) -> None:
        """The client took so many of the bytes held, or nobody wants them any more."""
        assert 0 <= size_bytes <= self.held_bytes, (size_bytes, self.held_bytes)
        if size_bytes:
            self.held_bytes -= size_bytes
            self._budget._count(self, -size_bytes)
            self._budget._freed()

    def ask_no_more(self) -> None:
        """What is held was all that is wanted."""
        self._budget._waiting.pop(self, None)

    def close(self) -> None:
        """The answer is done with."""
        self.ask_no_more()
        self.give_back(self.held_bytes)
