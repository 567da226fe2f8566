"""An engine's KV memory as a budget of tokens, and the prefixes it keeps in what is not in use."""

from collections import OrderedDict
from collections.abc import Sequence


class KvMemory:
    """``used`` tokens belong to running requests; whole blocks of prompts that nobody uses any more stay in
    the rest, the longest unused go first, of one prompt its end before its beginning (as vLLM does)."""

    def __init__(self, capacity_tokens: int, block_tokens: int) -> None:
        self.capacity_tokens = capacity_tokens
        self.block_tokens = block_tokens
        self.used = 0
        self._held: dict[int, int] = {}
        """Blocks in use, and by how many."""
        self._idle: OrderedDict[int, None] = OrderedDict()

    def known(self, blocks: Sequence[int]) -> int:
        """How many of ``blocks``, from the first on, are here."""
        held, idle = self._held, self._idle
        for count, block in enumerate(blocks):
            if block not in held and block not in idle:
                return count
        return len(blocks)

    def new_tokens(self, blocks: Sequence[int]) -> int:
        """What ``blocks`` would add to :attr:`used`: those held already are shared."""
        held = self._held
        return self.block_tokens * sum(block not in held for block in blocks)

    def hold(self, blocks: Sequence[int], private_tokens: int) -> None:
        """Take room for a request. There must be as much."""
        held, idle = self._held, self._idle
        added = 0
        for block in blocks:
            users = held.get(block)
            if users is None:
                idle.pop(block, None)
                held[block] = 1
                added += 1
            else:
                held[block] = users + 1
        self.grow(private_tokens + added * self.block_tokens)

    def release(self, blocks: Sequence[int], private_tokens: int) -> None:
        """A request is over: what is its own is free, its blocks stay as long as there is room."""
        held, idle = self._held, self._idle
        self.used -= private_tokens
        for block in reversed(blocks):
            users = held[block] - 1
            if users:
                held[block] = users
            else:
                del held[block]
                idle[block] = None
                self.used -= self.block_tokens
        assert self.used >= 0

    def grow(self, tokens: int) -> None:
        """More for those who have some; idle blocks make room."""
        self.used += tokens
        assert self.used <= self.capacity_tokens, (self.used, self.capacity_tokens)
        keep = (self.capacity_tokens - self.used) // self.block_tokens
        idle = self._idle
        while len(idle) > keep:
            idle.popitem(last=False)

    @property
    def free(self) -> int:
        return self.capacity_tokens - self.used

    def clear(self) -> None:
        """The memory's contents are lost."""
        self.used = 0
        self._held.clear()
        self._idle.clear()
