"""Who waits for whose answer. Pure data: those who wait are told by plain calls.

The first of identical requests leads, the others follow and are told what it came to. When that is nothing
they could use, the first of them that asks again leads the others.
"""

from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field

from gateway.pipeline.cache.cache import CachedAnswer

Told = Callable[[CachedAnswer | None], None]

MOST_UNFIT = 1024
"""Requests remembered whose answers were too long to be shared."""


@dataclass(slots=True, eq=False)
class SharedRequest:
    """One request that runs, and those who wait for its answer, the first to come first."""

    name: Hashable
    followers: dict[int, Told] = field(default_factory=dict)
    came: int = 0


class SharedRequests:
    """Those of one gateway. No more than ``most_followers`` wait for one."""

    def __init__(self, most_followers: int) -> None:
        self._most = most_followers
        self._running: dict[Hashable, SharedRequest] = {}
        self._unfit: OrderedDict[Hashable, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._running)

    def lead(self, name: Hashable) -> SharedRequest | None:
        """A shared request of one's own; None when there is one already, or its answer would be too long."""
        if name in self._running or name in self._unfit:
            return None
        shared = self._running[name] = SharedRequest(name)
        return shared

    def follow(self, name: Hashable, told: Told) -> Callable[[], None] | None:
        """Wait for who leads: ``told`` is called once, with the answer or None. Returns what ends the
        waiting; None when nobody leads or too many follow."""
        shared = self._running.get(name)
        if shared is None or len(shared.followers) >= self._most:
            return None
        shared.came += 1
        number = shared.came
        shared.followers[number] = told
        return lambda: _leave(shared, number)

    def finish(self, shared: SharedRequest, entry: CachedAnswer | None, *, unfit: bool = False) -> int:
        """It is over: whoever waits is told. ``unfit``: requests like this one had better not wait for each
        other. Returns how many waited. Idempotent."""
        if self._running.get(shared.name) is not shared:
            return 0
        del self._running[shared.name]
        if unfit:
            self._unfit[shared.name] = None
            if len(self._unfit) > MOST_UNFIT:
                self._unfit.popitem(last=False)
        followers, shared.followers = list(shared.followers.values()), {}
        for told in followers:
            told(entry)
        return len(followers)


def _leave(shared: SharedRequest, number: int) -> None:
    shared.followers.pop(number, None)
