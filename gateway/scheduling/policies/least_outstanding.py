"""Least outstanding work: each request goes where least is waiting to be done per unit of speed."""

import heapq
from collections.abc import Sequence

from gateway.scheduling.base import Assignment, DeploymentConstraints, DeploymentView, PendingRequest, Policy
from gateway.scheduling.policies.fitting import ContextRoom

SAMPLE = 64
"""Deployments looked at for one decision. The best of 64 is within the best hundredth of any fleet for all
practical purposes, and a decision's time does not grow with the fleet."""

TYPICAL_WORK = 256.0
"""Added to every deployment's work, so that of two idle ones the larger is taken."""

_Entry = tuple[bool, float, int, str, int, DeploymentView]
"""Whether requests are translated there, load, in flight, key, given in this call, deployment: the smallest
is the best, keys settle ties."""


class LeastOutstanding(Policy):
    """Fewest (outstanding + typical work) / (slots x speed); ties by requests in flight, then by key. One on
    trial comes before all others: else, where it is small, it might never be tried."""

    name = "least-outstanding"

    def assign(
        self, waiting: Sequence[PendingRequest], deployments: Sequence[DeploymentView], now: float
    ) -> list[Assignment]:
        """See :class:`~gateway.scheduling.base.Policy`."""
        if not waiting or not deployments:
            return []
        round_ = _Round(now)
        sample = _sample(deployments, max(SAMPLE, 2 * len(waiting)), waiting[0].number)
        left = round_.place(waiting, sample, whole=len(sample) == len(deployments))
        if left and len(sample) < len(deployments):
            round_.place(left, deployments, whole=True)
        return round_.assignments


def _sample(deployments: Sequence[DeploymentView], size: int, seed: int) -> Sequence[DeploymentView]:
    """At most about ``size`` of them, evenly spread, another subset for another seed."""
    step = len(deployments) // size
    return deployments if step < 2 else deployments[seed % step :: step]


class _Round:
    """One call of ``assign``: what has been given out so far in it."""

    def __init__(self, now: float) -> None:
        self.assignments: list[Assignment] = []
        self._context = ContextRoom(now)
        self._given: dict[str, int] = {}
        self._work: dict[str, float] = {}

    def place(
        self, waiting: Sequence[PendingRequest], deployments: Sequence[DeploymentView], *, whole: bool
    ) -> list[PendingRequest]:
        """Assign what fits, in order; returns what did not fit. ``whole``: these are all there are."""
        heaps: dict[DeploymentConstraints, list[_Entry]] = {}
        left: list[PendingRequest] = []
        for item in waiting:
            fit = item.fit
            heap = heaps.get(fit)
            if heap is None:
                heap = heaps[fit] = self._heap(deployments, fit)
            if not self._give(item, heap):
                left.append(item)
                if whole and heap:
                    self._context.reserve(item, (entry[-1] for entry in heap))
        return left

    def _heap(self, deployments: Sequence[DeploymentView], fit: DeploymentConstraints) -> list[_Entry]:
        """Those that may take a request of this fit and have room left, the best on top."""
        given = self._given
        heap = [
            self._entry(view, fit.route)
            for view in deployments
            if view.usable
            and (view.slots if view.slots < view.cap else view.cap) - view.in_flight
            > (given.get(view.key, 0) if given else 0)
            and view.suits(fit)
            and view.key not in fit.avoid
        ]
        heapq.heapify(heap)
        return heap

    def _give(self, item: PendingRequest, heap: list[_Entry]) -> bool:
        full: list[_Entry] = []
        """Those whose memory has no room for it; for the next one it may do."""
        view = None
        while heap and view is None:
            _, _, _, key, given_then, best = heap[0]
            given = self._given.get(key, 0)
            if min(best.slots, best.cap) - best.in_flight <= given:
                heapq.heappop(heap)
            elif given != given_then:  # something of another route went there meanwhile
                heapq.heapreplace(heap, self._entry(best, item.route))
            elif best.kv_free_tokens is not None and not self._context.fits(item, best):
                full.append(heapq.heappop(heap))
            else:
                view = best
        if view is not None:
            self._given[view.key] = self._given.get(view.key, 0) + 1
            self._work[view.key] = self._work.get(view.key, 0.0) + item.work
            self._context.give(item, view)
            heapq.heapreplace(heap, self._entry(view, item.route))
            self.assignments.append(Assignment(item.number, view.key))
        for entry in full:
            heapq.heappush(heap, entry)
        return view is not None

    def _entry(self, view: DeploymentView, need: str) -> _Entry:
        given = self._given.get(view.key, 0)
        if view.trial:
            return False, -1.0, given, view.key, given, view
        work = view.outstanding + self._work.get(view.key, 0.0) + TYPICAL_WORK
        load = work / (view.slots * view.speed)
        return need in view.translated, load, view.in_flight + given, view.key, given, view
