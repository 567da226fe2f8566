"""Policies by name, for the simulator: those of the gateway, what others do, and one that knows everything.

The gateway binds late: a request waits until a slot is free. Balancers that know of no slots push each
request at once, and it waits in the engine it was pushed to. So a name of :data:`PUSHED` is simulated as it
works elsewhere; with ``@queue`` behind it (``round-robin@queue``) it decides in this gateway, with its
queue.

What others do is from their published descriptions. Each is given what its description says that it uses:
requests in flight and prompts sent, which every balancer can count, and what engines export as metrics
(tokens queued and running, KV use). They decide the moment a request comes and do not hold it back. Ties go
to the deployment with fewer requests, then in turn.
"""

import math
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from zlib import crc32

from gateway.scheduling import POLICIES, policy_named
from gateway.scheduling.base import DeploymentView, Outcome, PendingRequest, Policy
from gateway.scheduling.learning.knowledge import Knowledge
from gateway.scheduling.policies.simple import SimplePolicy
from gateway.scheduling.scheduler import Scheduler
from gateway.tools.simulate.engine import SimulatedEngine
from gateway.tools.simulate.fleet import SimulatedDeployment
from gateway.tools.simulate.inputs import BadSpec

_TYPICAL_TOKENS = 1000
"""What one placed in the same turn is taken for."""


class BaselinePolicy(SimplePolicy):
    """A policy that looks at one request at a time, and learns only from what it has placed."""

    heeds_memory = False
    turn = 0

    def __init__(self, sites: Sequence[SimulatedDeployment], knowledge: Knowledge) -> None:
        super().__init__(knowledge)
        self.sites = {site.view.key: site for site in sites}

    def rotated(self, views: Sequence[DeploymentView]) -> Sequence[DeploymentView]:
        """``views``, beginning with another one each time, so that ties do not all go to the same."""
        self.turn += 1
        start = self.turn % len(views)
        return [*views[start:], *views[:start]]


class LeastLoad(BaselinePolicy):
    """``(queued + in-flight tokens) / throughput + 0.15 k / (1 - k)``, k being the KV memory in use.

    Throughput is what a profile of the device class would give: tokens of prompts a second.
    """

    name = "least-load"

    def __init__(self, sites: Sequence[SimulatedDeployment], knowledge: Knowledge) -> None:
        super().__init__(sites, knowledge)
        self._tokens = dict.fromkeys(self.sites, 0)

    def choose(self, item: PendingRequest, fitting: Sequence[DeploymentView]) -> DeploymentView:
        """The least of the formula."""
        return min(fitting, key=self._load)

    def _load(self, view: DeploymentView) -> tuple[float, int]:
        engine = self.sites[view.key].engine
        tokens = self._tokens[view.key] + _TYPICAL_TOKENS * self.given.get(view.key, 0)
        memory = engine.memory
        used = min(0.999, memory.used / memory.capacity_tokens)
        return tokens * engine.pace.token_s + 0.15 * used / (1 - used), view.in_flight

    def placed(self, item: PendingRequest, key: str, now: float) -> None:
        self._tokens[key] += item.input_tokens + item.output_tokens

    def finished(self, item: PendingRequest, key: str, outcome: Outcome, now: float) -> None:
        self._tokens[key] -= item.input_tokens + item.output_tokens


class CacheAware(BaselinePolicy):
    """Out of balance (max - min > 32 and max > 1.1 min in flight): the least loaded. Else who has read most
    of the prompt, if that is more than half of it; else the least loaded."""

    name = "cache-aware"

    def choose(self, item: PendingRequest, fitting: Sequence[DeploymentView]) -> DeploymentView:
        loads = [view.in_flight for view in fitting]
        least, most = min(loads), max(loads)
        if not (most - least > 32 and most > 1.1 * least):
            longest = self.knowledge.prefixes.longest_matches(item.prefix)
            if longest and longest[0][0] * item.block_tokens > 0.5 * item.input_tokens:
                holders = longest[0][1]
                found = [view for view in fitting if view.key in holders]
                if found:
                    return min(found, key=self.running)
        return min(self.rotated(fitting), key=self.running)


class LoadAwarePrefix(BaselinePolicy):
    """The greatest ``matched / prompt - (load - mean) / max(1, mean)``."""

    name = "load-aware-prefix"

    def choose(self, item: PendingRequest, fitting: Sequence[DeploymentView]) -> DeploymentView:
        mean = sum(map(self.running, fitting)) / len(fitting)
        scale = max(1.0, mean)
        share = item.block_tokens / max(1, item.input_tokens)
        longest = self.knowledge.prefixes.longest_matches(item.prefix)
        holders = longest[-1][1] if longest else ()

        def score(view: DeploymentView) -> float:
            matched = (
                self.knowledge.prefixes.matched_blocks(view.key, item.prefix) if view.key in holders else 0
            )
            return matched * share - (self.running(view) - mean) / scale

        return max(self.rotated(fitting), key=score)


class Chwbl(BaselinePolicy):
    """Consistent hashing on the prompt's first 256 tokens (or its first block, where that is longer), going
    on round the ring past those with more than 1.25 times the mean load."""

    name = "chwbl"

    POINTS = 64
    """How many points each deployment has on the ring."""

    def __init__(self, sites: Sequence[SimulatedDeployment], knowledge: Knowledge) -> None:
        super().__init__(sites, knowledge)
        self._ring: list[tuple[int, str]] = []
        self._in_flight = 0

    def choose(self, item: PendingRequest, fitting: Sequence[DeploymentView]) -> DeploymentView:
        blocks = item.prefix[: max(1, int(256 // item.block_tokens))]
        text = repr(blocks or item.session_key or item.number)
        count = self._in_flight + sum(self.given.values())
        most = -(-5 * (count + 1) // (4 * len(fitting)))
        allowed = {view.key: view for view in fitting}
        start = bisect_left(self._ring, (crc32(text.encode()), ""))
        for step in range(len(self._ring)):
            view = allowed.get(self._ring[(start + step) % len(self._ring)][1])
            if view is not None and self.running(view) + 1 <= most:
                return view
        return min(fitting, key=self.running)

    def deployment_added(self, view: DeploymentView, now: float) -> None:
        points = [(crc32(f"{view.key}/{point}".encode()), view.key) for point in range(self.POINTS)]
        self._ring = sorted(self._ring + points)

    def deployment_removed(self, key: str, now: float) -> None:
        self._ring = [point for point in self._ring if point[1] != key]

    def placed(self, item: PendingRequest, key: str, now: float) -> None:
        self._in_flight += 1

    def finished(self, item: PendingRequest, key: str, outcome: Outcome, now: float) -> None:
        self._in_flight -= 1


class OraclePolicy(BaselinePolicy):
    """Chooses the deployment where the request and those that run there lose the least time together,
    computed from the engine's true state and the true cost of everything.

    No proof of a bound: it decides one request after the other. It is what a perfect estimate would give.
    """

    name = "clairvoyant"

    def __init__(self, sites: Sequence[SimulatedDeployment], knowledge: Knowledge) -> None:
        super().__init__(sites, knowledge)
        self._sent: dict[str, list[tuple[float, int]]] = {}
        """What is on its way to each deployment: when it arrives, and its uncached tokens."""

    def choose(self, item: PendingRequest, fitting: Sequence[DeploymentView]) -> DeploymentView:
        return min(fitting, key=lambda view: (self._cost_s(item, view), view.in_flight))

    def placed(self, item: PendingRequest, key: str, now: float) -> None:
        site = self.sites[key]
        uncached = item.input_tokens - _cached(item, site.engine)
        self._sent.setdefault(key, []).append((now + site.one_way_s, uncached))

    def deployment_removed(self, key: str, now: float) -> None:
        self._sent.pop(key, None)

    def _cost_s(self, item: PendingRequest, view: DeploymentView) -> float:
        site = self.sites[view.key]
        engine, pace = site.engine, site.engine.pace
        sent = self._sent.get(view.key)
        if sent:
            sent[:] = [each for each in sent if each[0] > self.now]
        company = len(engine.running) + len(engine.waiting) + len(sent or ()) + self.given.get(view.key, 0)
        ahead = engine.backlog_by(self.now) + sum(each[1] for each in sent or ())
        cached = _cached(item, engine)
        uncached = item.input_tokens - cached
        step_s = (
            pace.step_s + max(pace.weights_s, pace.token_s * (company + 1)) + pace.context_s * engine.context
        )
        steps = math.ceil((uncached + ahead) / pace.chunk_tokens)
        read_s = max(pace.weights_s, uncached * pace.token_s) + pace.pair_s * uncached * (
            cached + uncached / 2
        )
        first_s = view.rtt_s + ahead * pace.token_s + read_s + steps * (step_s - pace.weights_s)
        context = item.input_tokens + item.output_tokens / 2
        write_s = item.output_tokens * (step_s + pace.context_s * context)
        harm_s = company * (read_s + item.output_tokens * pace.context_s * context)
        missing = item.input_tokens + item.output_tokens - cached - engine.memory.free
        crowded_s = 0.0 if missing <= 0 or not company else missing / company * step_s
        return first_s + write_s + harm_s + crowded_s


def _cached(item: PendingRequest, engine: SimulatedEngine) -> int:
    memory = engine.memory
    return min(memory.known(item.prefix) * memory.block_tokens, item.input_tokens - 1)


QUEUED = "@queue"

COMMON_POLICIES = frozenset(("round-robin", "least-connections", "power-of-two", "random"))
"""Those of the gateway's policies that every load balancer has."""

BASELINES: Mapping[str, type[BaselinePolicy]] = {
    baseline.name: baseline for baseline in (LeastLoad, CacheAware, LoadAwarePrefix, Chwbl, OraclePolicy)
}
PUSHED = COMMON_POLICIES | BASELINES.keys() - {OraclePolicy.name}


@dataclass(frozen=True, slots=True)
class PolicyChoice:
    """A policy as it is to be simulated. ``late`` ones decide when a slot is free, the others at once."""

    name: str
    policy: str
    late: bool

    @property
    def knows_output_lengths(self) -> bool:
        return self.policy == OraclePolicy.name

    def scheduler(self, sites: Sequence[SimulatedDeployment], seed: int) -> Scheduler:
        """The gateway's own scheduler, fresh, with this policy."""

        def make(name: str, knowledge: Knowledge | None) -> Policy:
            baseline = BASELINES.get(name)
            return (
                policy_named(name, knowledge)
                if baseline is None
                else baseline(sites, knowledge or Knowledge())
            )

        return Scheduler(self.policy, seed=seed, make=make)


def policy_names() -> list[str]:
    """All there are."""
    return sorted({*POLICIES, *BASELINES})


def choices(text: str) -> list[PolicyChoice]:
    """The policies named in ``text``, separated by commas; ``all`` is every one. Raises BadSpec."""
    wanted = policy_names() if text.strip() == "all" else [name.strip() for name in text.split(",")]
    return [_choice(name) for name in dict.fromkeys(wanted)]


def _choice(name: str) -> PolicyChoice:
    policy = name.removesuffix(QUEUED)
    if policy not in POLICIES and policy not in BASELINES:
        raise BadSpec("--policy", f"no policy is called {policy!r}; there are: {', '.join(policy_names())}")
    return PolicyChoice(name, policy, late=policy not in PUSHED or name != policy)
