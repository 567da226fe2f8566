"""Which deployment has read which beginnings of prompts.

A prompt's beginning is known by a chain of fingerprints (:mod:`gateway.domain.fingerprints`), one for each
whole block. The index maps fingerprints to the deployments that read them. A deployment's chains are
remembered with the shallow blocks as the most recent ones, so that it forgets the ends of chains first
and what it remembers is always a beginning: how far it matches can be found by bisection.
"""

from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Collection, Sequence

DEPLOYMENT_BLOCKS = 4096
"""Blocks remembered of one deployment at most, some million tokens: more than engines keep."""

TOTAL_BLOCKS = 1_000_000
"""Blocks remembered of all deployments of a model together, some 150 MB when all are used."""

LEAST_BLOCKS = 128
"""Blocks remembered of each deployment however many there are."""

STEPS = 4
"""Matches of different length that one search distinguishes."""


class PrefixIndex:
    """Chains that the deployments of one model have read. Bounded as the constants above say."""

    def __init__(self, deployment_blocks: int = DEPLOYMENT_BLOCKS, total_blocks: int = TOTAL_BLOCKS) -> None:
        self._deployment_blocks = deployment_blocks
        self._total_blocks = total_blocks
        self._blocks: dict[str, OrderedDict[int, None]] = {}
        """The fingerprints of each deployment, those used longest ago first."""
        self._holders: dict[int, dict[str, None]] = {}

    def __len__(self) -> int:
        """Blocks remembered, counted once for each deployment that has them."""
        return sum(map(len, self._blocks.values()))

    def note_read(self, key: str, chain: Sequence[int], most: int | None = None) -> None:
        """The deployment ``key`` reads a prompt with this chain; it is known to keep ``most`` blocks at
        most."""
        if not chain:
            return
        blocks = self._blocks.get(key)
        if blocks is None:
            blocks = self._blocks[key] = OrderedDict()
        most = self._most_blocks() if most is None else min(most, self._most_blocks())
        holders = self._holders
        for fingerprint in reversed(chain[:most]):
            if fingerprint in blocks:
                blocks.move_to_end(fingerprint)
            else:
                holders.setdefault(fingerprint, {})[key] = None
                blocks[fingerprint] = None
        while len(blocks) > most:
            oldest, _ = blocks.popitem(last=False)
            self._let_go(oldest, key)

    def forget(self, key: str) -> None:
        """What ``key`` has read is lost: it is no more, or has loaded its model anew."""
        for fingerprint in self._blocks.pop(key, ()):
            self._let_go(fingerprint, key)

    def matched_blocks(self, key: str, chain: Sequence[int]) -> int:
        """How many blocks of ``chain`` the deployment ``key`` has read, from the first on."""
        blocks = self._blocks.get(key)
        if not blocks or not chain or chain[0] not in blocks:
            return 0
        return bisect_left(chain, True, lo=1, key=lambda fingerprint: fingerprint not in blocks)

    def longest_matches(self, chain: Sequence[int]) -> list[tuple[int, Collection[str]]]:
        """Who has read how much of ``chain``, the longest match first, in up to ``STEPS`` steps: pairs of a
        number of blocks and all the deployments that have read at least so many. The last step is the first
        block's; what lies between may be left out."""
        holders = self._holders
        if not chain or chain[0] not in holders:
            return []
        steps: list[tuple[int, Collection[str]]] = []
        high = self._reach(chain, 1, len(chain), 1)
        while len(steps) < STEPS - 1:
            found = holders[chain[high - 1]]
            steps.append((high, found))
            if high == 1 or len(holders[chain[0]]) == len(found):
                return steps
            high = self._reach(chain, 1, high - 1, len(found) + 1)
        steps.append((1, holders[chain[0]]))
        return steps

    def _reach(self, chain: Sequence[int], low: int, high: int, count: int) -> int:
        """The most blocks, from ``low`` to ``high``, that ``count`` deployments have read; ``low`` blocks are
        known to be read by as many."""
        holders = self._holders
        return bisect_left(
            chain, True, low, high, key=lambda fingerprint: len(holders.get(fingerprint, ())) < count
        )

    def _most_blocks(self) -> int:
        share = self._total_blocks // max(1, len(self._blocks))
        return max(LEAST_BLOCKS, min(self._deployment_blocks, share))

    def _let_go(self, fingerprint: int, key: str) -> None:
        keys = self._holders[fingerprint]
        del keys[key]
        if not keys:
            del self._holders[fingerprint]
