"""How much is handed to engines, and what waits in the gateway instead ("late binding").

An engine reads prompts one after the other. A request that is handed to an engine with enough to read waits
there as long as here. But the order is then fixed: no other tenant's turn comes before it, and it cannot go
to another engine that turns out to be done earlier. Also, the more prompts an engine has, the more of them it
puts into each step, which delays all answers that are being written. So a deployment that has
``READ_AHEAD_S`` to read is *busy*: it gets more once it has less.

A request may also be kept waiting, with a slot free, for a better deployment that has none
(:class:`HoldTimer`).
"""

from collections.abc import Mapping, Sequence

from gateway.scheduling.base import DeploymentView, PendingRequest
from gateway.scheduling.learning.knowledge import Knowledge
from gateway.scheduling.policies.completion import RoundLoad
from gateway.scheduling.recent import RecentDict

READ_AHEAD_S = 0.05
"""Seconds of reading that an engine has in advance, beside the round trip to it, so that it is never idle."""

AHEAD_SHARE = 0.5
AHEAD_MOST_S = 1.5
"""Where several processes choose for the same engines, one with a request that has waited long gives an
engine more in advance: this share of the wait, at most so much. So the process with the oldest request is the
first to find an engine ready, and the others see what it gave. ``docs/simulated.md`` has figures."""

MAX_HOLD_S = 20.0
"""A request that has waited this long is handed over all the same, wherever it is predicted to be done first:
predictions may be wrong."""

LOOK_S = 0.01
"""The least time before the policy checks again whether a deployment is still busy."""

REST_S = 0.25
"""While all deployments are busy, the policy is not called for this long at most."""

SLACK_S = 0.001
"""A deployment that will be ready within this time counts as ready."""

STANDS_S = 0.1
"""A request that waits although something is free is considered again after this time at the latest."""

OFFERED = 64
"""Waiting requests that are offered to a policy at once."""

MAX_HELD_QUEUE = 512
"""When more requests wait, none is held back: a queue that is about to refuse requests must drain first. All
are offered then."""

MOST_DECLINED = 4096


def offered_at_once(depth: int) -> int:
    """How many of ``depth`` waiting requests to offer to the policy at once."""
    return depth if depth > MAX_HELD_QUEUE else min(depth, OFFERED)


def is_busy(view: DeploymentView, now: float, ahead_s: float = READ_AHEAD_S) -> bool:
    """Whether the deployment has enough to read, and should get nothing more."""
    load = view.load
    return (load.ready_s - now) * load.queueing > ahead_s + SLACK_S + view.rtt_s


def _ahead_s(waiting: Sequence[PendingRequest], now: float) -> float:
    """Seconds of reading that an engine is given in advance where other processes choose for it as well."""
    wait_s = now - min((item.arrived_s for item in waiting), default=now)
    return READ_AHEAD_S + min(AHEAD_MOST_S, AHEAD_SHARE * wait_s)


class BusyDeployments:
    """Deployments by whether they have enough to read, as of now and of what they are given in a round."""

    def __init__(
        self,
        views: Sequence[DeploymentView],
        given: Mapping[str, RoundLoad],
        knowledge: Knowledge,
        now: float,
        waiting: Sequence[PendingRequest] = (),
    ) -> None:
        """``given`` is the load given to each deployment in this round, by key; call :meth:`note` when it
        changes. ``waiting`` are those who are to be placed."""
        self._given = given
        self._knowledge = knowledge
        self._now = now
        self._held: dict[str, int] = {}
        self._counts: dict[str, float] | None = None
        self._busy: list[DeploymentView] = []
        self._ahead_s = ahead_s = _ahead_s(waiting, now) if knowledge.shared else READ_AHEAD_S
        until_s = now + ahead_s
        self.ready = [view for view in views if view.load.ready_s <= until_s]
        """The deployments that take more."""
        self.keys: frozenset[str] = frozenset()
        """The keys of ``ready``, where others are busy."""
        if len(self.ready) < len(views):
            self.ready = [view for view in views if not is_busy(view, now, ahead_s)]
            self.keys = frozenset([view.key for view in self.ready])
            self._busy = [view for view in views if view.key not in self.keys]
        if given:
            for view in [view for view in self.ready if view.key in given]:
                self.note(view)

    def __bool__(self) -> bool:
        """Whether any deployment is busy."""
        return bool(self._busy)

    def ready_in_s(self, view: DeploymentView) -> float:
        """Seconds until ``view`` takes more; 0 or less where it does now."""
        given, wait_s = self._given.get(view.key), view.load.ready_s - self._now
        if given is not None:
            wait_s = (wait_s if wait_s > 0.0 else 0.0) + given.read_s
        return wait_s * view.load.queueing - self._ahead_s - view.rtt_s

    def next_ready_in_s(self) -> float:
        """Seconds until the first busy deployment takes more."""
        return min(map(self.ready_in_s, self._busy))

    def note(self, view: DeploymentView) -> None:
        """``view`` was given a request in this round."""
        if self.ready_in_s(view) > SLACK_S and view in self.ready:
            self.ready.remove(view)
            self._busy.append(view)
            self._counts = None
            self.keys = frozenset([each.key for each in self.ready])

    def worth_waiting_for(self, item: PendingRequest, known: Mapping[str, int]) -> list[DeploymentView]:
        """The busy deployments worth waiting for: of each class of device the one that has least to read of
        those where ``item`` may run, and those that have read some of its prompt."""
        where, found = item.where, dict[str, tuple[float, DeploymentView]]()
        for view in self._busy:
            if item.agent is not None and item.agent != view.agent:
                continue
            if where is not None and not where.allows(view.labels):
                continue
            over_s, best = self.ready_in_s(view), found.get(view.device)
            if best is None or over_s < best[0]:
                found[view.device] = over_s, view
        views = [view for _, view in found.values()]
        return views + [view for view in self._busy if view.key in known] if known else views

    # --- Requests that wait for a class of device ---

    def add_held(self, device: str, tokens: int) -> None:
        """A prompt of so many tokens waits for one of class ``device``, before all that are not held yet."""
        self._held[device] = self._held.get(device, 0) + tokens

    def held_s(self, view: DeploymentView) -> float:
        """How long those of its class that are busy take, all together, to read what is held for them."""
        tokens = self._held.get(view.device)
        if not tokens:
            return 0.0
        if self._counts is None:
            self._counts = {}
            for each in self._busy:
                self._counts[each.device] = self._counts.get(each.device, 0.0) + 1.0 / each.load.reading_pace
        return tokens * self._knowledge.speeds(view).token_s / self._counts.get(view.device, 1.0)


class DeclinedOffers:
    """Requests that wait although a deployment was free.

    Kept of each: until when that holds, which deployments were free, which class of device it waits for, and
    how many tokens it has to read there.
    """

    def __init__(self) -> None:
        self.known = RecentDict[int, tuple[float, frozenset[str], str, int]](MOST_DECLINED)

    def waits_for(self, number: int, keys: frozenset[str], now: float) -> tuple[str, int] | None:
        """The class of device that the request ``number`` waits for, and the tokens it has to read there, if
        it has lately declined all of ``keys``."""
        known = self.known.get(number)
        if known is None or now >= known[0] or not keys <= known[1]:
            return None
        return known[2], known[3]

    def note(self, number: int, keys: frozenset[str], device: str, tokens: int, now: float) -> None:
        """The request ``number`` declined all of ``keys``, to read ``tokens`` on a ``device``."""
        self.known[number] = now + STANDS_S, keys, device, tokens

    def forget(self, number: int) -> None:
        """It was placed."""
        self.known.pop(number, None)


PATIENCE_S = 5.0
"""A request waits for a better deployment for this long at most, all in all."""

MOST_PATIENT = 64
"""Requests of one model that wait so at once, at most. Predictions of the next free slot are too uncertain
beyond that."""


class HoldTimer:
    """Requests that wait for a better deployment, and since when."""

    LOOK_S = 0.25
    """The least time after which to look again unasked: a slot that comes free is seen at once anyway."""

    def __init__(self) -> None:
        self.since: dict[int, float] = {}

    def left_s(self, number: int, now: float) -> float:
        """How much longer the request ``number`` may wait."""
        since_s = self.since.get(number)
        return PATIENCE_S if since_s is None else since_s + PATIENCE_S - now

    def begin(self, number: int, now: float) -> bool:
        """It waits from now on, unless it does already. False when there are too many."""
        if number in self.since:
            return True
        if len(self.since) >= MOST_PATIENT:
            self.since = {each: at_s for each, at_s in self.since.items() if now < at_s + PATIENCE_S}
            if len(self.since) >= MOST_PATIENT:
                return False
        self.since[number] = now
        return True

    def forget(self, number: int) -> None:
        """It was placed."""
        self.since.pop(number, None)
