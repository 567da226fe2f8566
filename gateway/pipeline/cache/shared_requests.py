"""Identical requests that wait for one answer.

The first of them leads, the others follow and get its answer. Where that answer is of no use to them, the
first of them that asks again leads the others.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass, field

from gateway.pipeline.cache.cache import CachedAnswer

MOST_TOO_LONG = 1024
"""Requests remembered whose answers were too long to be shared."""


@dataclass(slots=True, eq=False)
class SharedRequest:
    """One request that runs, and how many wait for its answer."""

    name: Hashable
    answer: "asyncio.Future[CachedAnswer | None]" = field(
        default_factory=lambda: asyncio.get_running_loop().create_future()
    )
    followers: int = 0


class SharedRequests:
    """Those of one gateway. No more than ``most_followers`` wait for one."""

    def __init__(self, most_followers: int) -> None:
        self._most = most_followers
        self._running: dict[Hashable, SharedRequest] = {}
        self._too_long: OrderedDict[Hashable, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._running)

    def lead(self, name: Hashable) -> SharedRequest | None:
        """A shared request of one's own; None when there is one already, or its answer would be too long."""
        if name in self._running or name in self._too_long:
            return None
        shared = self._running[name] = SharedRequest(name)
        return shared

    async def follow(self, name: Hashable, deadline_s: float | None) -> CachedAnswer | None:
        """The leader's answer; None when nobody leads, too many follow, or the answer is of no use. Raises
        TimeoutError at ``deadline_s`` of the event loop's clock."""
        shared = self._running.get(name)
        if shared is None or shared.followers >= self._most:
            return None
        shared.followers += 1
        try:
            async with asyncio.timeout_at(deadline_s):
                return await asyncio.shield(shared.answer)
        finally:
            shared.followers -= 1

    def finish(self, shared: SharedRequest, entry: CachedAnswer | None, *, too_long: bool = False) -> None:
        """Give ``entry`` to all that follow. ``too_long``: requests like this one no longer wait for each
        other."""
        del self._running[shared.name]
        if too_long:
            self._too_long[shared.name] = None
            if len(self._too_long) > MOST_TOO_LONG:
                self._too_long.popitem(last=False)
        shared.answer.set_result(entry)
