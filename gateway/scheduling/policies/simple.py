"""The well-known policies, such as ``round-robin`` and ``least-connections``. Each follows its own rule only;
none considers what a request costs.
"""

import random
from collections.abc import Sequence
from functools import partial
from hashlib import blake2b
from operator import attrgetter

from gateway.scheduling.base import Assignment, DeploymentView, Outcome, PendingRequest, Policy
from gateway.scheduling.learning.knowledge import Knowledge
from gateway.scheduling.policies.affinity import fair_share, rendezvous_rank
from gateway.scheduling.policies.fitting import ContextRoom, eligible_deployments, native_first

MATCH_SHARE = 0.5
"""The share of a prompt that a deployment must have read for ``prefix`` to prefer it."""

TIME_WEIGHT = 0.1
"""Weight of the latest answer in the mean that ``response-time`` compares."""


class SimplePolicy(Policy):
    """Takes requests in order of turns; each goes to the deployment that :meth:`choose` picks of those that
    fit."""

    heeds_memory = True
    """Whether a request waits for a deployment that reports memory for its context."""

    def __init__(self, knowledge: Knowledge) -> None:
        self.knowledge = knowledge
        seed = blake2b(f"{knowledge.seed} {self.name}".encode(), digest_size=8).digest()
        self.random = random.Random(int.from_bytes(seed, "little"))
        self.given: dict[str, int] = {}
        """Requests given to each deployment in this call."""
        self.now = 0.0
        self.scores: dict[str, float] = {}
        """What the policy remembers of each deployment, by key."""

    def assign(
        self, waiting: Sequence[PendingRequest], deployments: Sequence[DeploymentView], now: float
    ) -> list[Assignment]:
        """See :class:`~gateway.scheduling.base.Policy`."""
        self.given, self.now = {}, now
        context = ContextRoom(now)
        assignments: list[Assignment] = []
        open_now = [
            view
            for view in deployments
            if view.in_flight < view.slots and view.in_flight < view.cap and view.usable
        ]
        for item in waiting:
            if not open_now:
                break
            has_room = partial(context.fits, item) if self.heeds_memory else _has_room
            fitting = native_first(item.route, eligible_deployments(item, open_now, has_room))
            if not fitting:
                context.reserve(item, open_now)
                continue
            view = next((each for each in fitting if each.trial), None) or self.choose(item, fitting)
            context.give(item, view)
            self.given[view.key] = given = self.given.get(view.key, 0) + 1
            assignments.append(Assignment(item.number, view.key))
            if given >= view.free:
                open_now.remove(view)
        return assignments

    def deployment_removed(self, key: str, now: float) -> None:
        self.scores.pop(key, None)

    def choose(self, item: PendingRequest, fitting: Sequence[DeploymentView]) -> DeploymentView:
        """One of ``fitting``, which are one or more, all with room for ``item``."""
        raise NotImplementedError

    def running(self, view: DeploymentView) -> int:
        """Requests at ``view``, those given to it in this call included."""
        return view.in_flight + self.given.get(view.key, 0)

    def least(self, views: Sequence[DeploymentView]) -> DeploymentView:
        """The one with fewest requests running, of several the first by its key."""
        running = list(map(self.running, views)) if self.given else [view.in_flight for view in views]
        return _first_of_least(views, running)


class LeastConnections(SimplePolicy):
    """Fewest requests running, whatever the size of the deployment."""

    name = "least-connections"

    def choose(self, item: PendingRequest, fitting: Sequence[DeploymentView]) -> DeploymentView:
        return self.least(fitting)


class RoundRobin(SimplePolicy):
    """The one whose last turn is longest ago."""

    name = "round-robin"
    turn = 0

    def choose(self, item: PendingRequest, fitting: Sequence[DeploymentView]) -> DeploymentView:
        chosen = _first_of_least(fitting, [self.scores.get(view.key, 0) for view in fitting])
        self.turn += 1
        self.scores[chosen.key] = self.turn
        return chosen


class Weighted(SimplePolicy):
    """Smooth weighted round robin, as nginx does it: each turn all gain their weight, the one that has
    most is taken and loses what all gained. The weight is slots times speed."""

    name = "weighted"

    def choose(self, item: PendingRequest, fitting: Sequence[DeploymentView]) -> DeploymentView:
        gained, total = self.scores, 0.0
        for view in fitting:
            weight = view.slots * view.speed
            gained[view.key] = gained.get(view.key, 0.0) + weight
            total += weight
        chosen = max(fitting, key=lambda view: (gained[view.key], view.key))
        gained[chosen.key] -= total
        return chosen


class PowerOfTwo(SimplePolicy):
    """The one of two drawn at random that has fewer requests running (Mitzenmacher, 2001)."""

    name = "power-of-two"

    def choose(self, item: PendingRequest, fitting: Sequence[DeploymentView]) -> DeploymentView:
        two = self.random.sample(fitting, min(2, len(fitting)))
        return min(two, key=self.running)


class ResponseTime(SimplePolicy):
    """Least mean time of the latest answers, for each request it runs; one that has not answered yet comes
    first."""

    name = "response-time"

    def choose(self, item: PendingRequest, fitting: Sequence[DeploymentView]) -> DeploymentView:
        return min(
            fitting,
            key=lambda view: (
                self.scores.get(view.key, 0.0) * (self.running(view) + 1),
                self.running(view),
                view.key,
            ),
        )

    def finished(self, item: PendingRequest, key: str, outcome: Outcome, now: float) -> None:
        if outcome.ok:
            mean_s = self.scores.get(key, outcome.total_s)
            self.scores[key] = mean_s + TIME_WEIGHT * (outcome.total_s - mean_s)


class Prefix(SimplePolicy):
    """The one that has read most of the prompt, where that is half of it; else fewest running."""

    name = "prefix"

    def choose(self, item: PendingRequest, fitting: Sequence[DeploymentView]) -> DeploymentView:
        needed = MATCH_SHARE * item.input_tokens
        prefixes = self.knowledge.prefixes
        for blocks, keys in prefixes.longest_matches(item.prefix):
            if blocks * item.block_tokens < needed:
                break
            readers = [view for view in fitting if view.key in keys]
            if readers:
                return self.least(readers)
        return self.least(fitting)


class SessionHashing(SimplePolicy):
    """Where the session is at home, by rendezvous hashing with bounded loads; without a session, fewest
    running. A home that is full or over its bound is passed over for the session's next choice."""

    name = "session"

    def choose(self, item: PendingRequest, fitting: Sequence[DeploymentView]) -> DeploymentView:
        if item.session_key is None:
            return self.least(fitting)
        among = self.knowledge.views.values() or fitting
        share = fair_share(sum(map(self.running, among)) + 1, sum(view.slots for view in among))
        session = item.session_key
        within = [view for view in fitting if self.running(view) + 1 <= max(1.0, share * view.slots)]
        return max(within or fitting, key=lambda view: (rendezvous_rank(session, view.key), view.key))


class Random(SimplePolicy):
    """A deployment drawn at random, all alike."""

    name = "random"

    def choose(self, item: PendingRequest, fitting: Sequence[DeploymentView]) -> DeploymentView:
        return self.random.choice(fitting)


def _has_room(view: DeploymentView) -> bool:
    return True


def _first_of_least(views: Sequence[DeploymentView], values: Sequence[float]) -> DeploymentView:
    """The first by key of those whose value is least."""
    least = min(values)
    return min(
        [view for view, value in zip(views, values, strict=True) if value == least], key=attrgetter("key")
    )
