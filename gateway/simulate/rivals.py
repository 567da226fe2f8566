"""What others do, from their published descriptions (SCHEDULING, The simulator).

Each is given what its description says that it uses: requests in flight and prompts sent, which every
balancer can count, and what engines export as metrics (tokens queued and running, KV use). They decide the
moment a request comes and do not hold it back. Ties go to the deployment with fewer requests, then in turn.
"""

from bisect import bisect_left
from collections.abc import Sequence
from zlib import crc32

from gateway.scheduling.base import Assignment, DeploymentView, Outcome, Waiting
from gateway.scheduling.prefix import PrefixIndex
from gateway.simulate.site import Site


class OneByOne:
    """A policy that looks at one request at a time, and at the deployments that take it."""

    name = ""
    look_again_s: float | None = None
    rests_until_s = 0.0

    def __init__(self, sites: Sequence[Site]) -> None:
        self.sites = {site.view.key: site for site in sites}
        self.given: dict[str, int] = {}
        """In the ``assign`` under way."""

    def assign(
        self, waiting: Sequence[Waiting], deployments: Sequence[DeploymentView], now: float
    ) -> list[Assignment]:
        """See :class:`~gateway.scheduling.base.Policy`."""
        assignments: list[Assignment] = []
        given: dict[str, int] = {}
        self.given = given
        for item in waiting:
            open_now = deployments
            if given:
                open_now = [
                    view for view in deployments if view.key not in given or view.free > given[view.key]
                ]
            if not open_now:
                break
            view = self.choose(item, open_now, now)
            given[view.key] = given.get(view.key, 0) + 1
            assignments.append(Assignment(item.number, view.key))
        return assignments

    def choose(self, item: Waiting, open_now: Sequence[DeploymentView], now: float) -> DeploymentView:
        raise NotImplementedError

    def running(self, view: DeploymentView) -> int:
        return view.in_flight + self.given.get(view.key, 0)

    def came(self, view: DeploymentView, now: float) -> None: ...
    def gone(self, key: str, now: float) -> None: ...
    def placed(self, item: Waiting, key: str, now: float) -> None: ...
    def finished(self, item: Waiting, key: str, outcome: Outcome, now: float) -> None: ...


class LeastLoad(OneByOne):
    """``(queued + in-flight tokens) / throughput + 0.15 k / (1 - k)``, k being the KV memory in use.

    Throughput is what a profile of the device class would give: tokens of prompts a second.
    """

    name = "least-load"

    def __init__(self, sites: Sequence[Site]) -> None:
        super().__init__(sites)
        self._tokens = dict.fromkeys(self.sites, 0)

    def choose(self, item: Waiting, open_now: Sequence[DeploymentView], now: float) -> DeploymentView:
        """The least of the formula."""
        return min(open_now, key=self._load)

    def _load(self, view: DeploymentView) -> tuple[float, int]:
        engine = self.sites[view.key].engine
        tokens = self._tokens[view.key] + _TYPICAL_TOKENS * self.given.get(view.key, 0)
        memory = engine.memory
        used = min(0.999, memory.used / memory.capacity_tokens)
        return tokens * engine.pace.token_s + 0.15 * used / (1 - used), view.in_flight

    def placed(self, item: Waiting, key: str, now: float) -> None:
        self._tokens[key] += item.input_tokens + item.output_tokens

    def finished(self, item: Waiting, key: str, outcome: Outcome, now: float) -> None:
        self._tokens[key] -= item.input_tokens + item.output_tokens


_TYPICAL_TOKENS = 1000
"""What one placed in the same turn is taken for."""


class CacheAware(OneByOne):
    """Out of balance (max - min > 32 and max > 1.1 min in flight): the least loaded. Else who has read most
    of the prompt, if that is more than half of it; else the least loaded."""

    name = "cache-aware"

    def __init__(self, sites: Sequence[Site]) -> None:
        super().__init__(sites)
        self._index = PrefixIndex()
        self._turn = 0

    def choose(self, item: Waiting, open_now: Sequence[DeploymentView], now: float) -> DeploymentView:
        loads = [view.in_flight for view in open_now]
        least, most = min(loads), max(loads)
        if not (most - least > 32 and most > 1.1 * least):
            longest = self._index.longest(item.prefix)
            if longest and longest[0][0] * item.block_tokens > 0.5 * item.input_tokens:
                holders = longest[0][1]
                found = [view for view in open_now if view.key in holders]
                if found:
                    return min(found, key=self.running)
        self._turn += 1
        return min(_rotated(open_now, self._turn), key=self.running)

    def placed(self, item: Waiting, key: str, now: float) -> None:
        self._index.saw(key, item.prefix)

    def gone(self, key: str, now: float) -> None:
        self._index.gone(key)


class LoadAwarePrefix(OneByOne):
    """The greatest ``matched / prompt - (load - mean) / max(1, mean)``."""

    name = "load-aware-prefix"

    def __init__(self, sites: Sequence[Site]) -> None:
        super().__init__(sites)
        self._index = PrefixIndex()
        self._turn = 0

    def choose(self, item: Waiting, open_now: Sequence[DeploymentView], now: float) -> DeploymentView:
        mean = sum(map(self.running, open_now)) / len(open_now)
        scale = max(1.0, mean)
        share = item.block_tokens / max(1, item.input_tokens)
        longest = self._index.longest(item.prefix)
        holders = longest[-1][1] if longest else ()

        def score(view: DeploymentView) -> float:
            matched = self._index.matched(view.key, item.prefix) if view.key in holders else 0
            return matched * share - (self.running(view) - mean) / scale

        self._turn += 1
        return max(_rotated(open_now, self._turn), key=score)

    def placed(self, item: Waiting, key: str, now: float) -> None:
        self._index.saw(key, item.prefix)

    def gone(self, key: str, now: float) -> None:
        self._index.gone(key)


class Chwbl(OneByOne):
    """Consistent hashing on the prompt's first 256 tokens (or its first block, where that is longer), going
    on round the ring past those with more than 1.25 times the mean load."""

    name = "chwbl"

    POINTS = 64
    """Of each deployment on the ring."""

    def __init__(self, sites: Sequence[Site]) -> None:
        super().__init__(sites)
        self._ring: list[tuple[int, str]] = []
        self._in_flight = 0

    def choose(self, item: Waiting, open_now: Sequence[DeploymentView], now: float) -> DeploymentView:
        blocks = item.prefix[: max(1, int(256 // item.block_tokens))]
        text = repr(blocks or item.session_key or item.number)
        count = self._in_flight + sum(self.given.values())
        most = -(-5 * (count + 1) // (4 * len(open_now)))
        allowed = {view.key: view for view in open_now}
        start = bisect_left(self._ring, (crc32(text.encode()), ""))
        for step in range(len(self._ring)):
            view = allowed.get(self._ring[(start + step) % len(self._ring)][1])
            if view is not None and self.running(view) + 1 <= most:
                return view
        return min(open_now, key=self.running)

    def came(self, view: DeploymentView, now: float) -> None:
        points = [(crc32(f"{view.key}/{point}".encode()), view.key) for point in range(self.POINTS)]
        self._ring = sorted(self._ring + points)

    def gone(self, key: str, now: float) -> None:
        self._ring = [point for point in self._ring if point[1] != key]

    def placed(self, item: Waiting, key: str, now: float) -> None:
        self._in_flight += 1

    def finished(self, item: Waiting, key: str, outcome: Outcome, now: float) -> None:
        self._in_flight -= 1


def _rotated(views: Sequence[DeploymentView], turn: int) -> Sequence[DeploymentView]:
    """Beginning with another one each turn, so that ties do not all go to the same."""
    start = turn % len(views)
    return [*views[start:], *views[:start]]
