"""Which running requests give way to realtime requests. Pure data.

A request that runs is asked to give its slot back only when that helps: a realtime request is next, no
slot that fits it is free or is coming free already, it would have to wait for longer than
``preempt_after_s``, and the one that gives way would keep its slot at least as long as that. Of those
that would do, batch goes before standard, and then who loses least.

Batch gives way if ``preempt_batch`` says so, standard if ``preempt_standard`` does. Besides,
``reserved_share`` of a model's slots are realtime's: others have borrowed them as far as realtime does not
use them, and give them back whatever their tier.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from gateway.domain.request import Tier
from gateway.scheduling.base import DeploymentView, PendingRequest


@dataclass(frozen=True, slots=True)
class PreemptRules:
    """Who may be asked to give way, and when."""

    preempt_batch: bool = True
    preempt_standard: bool = False
    preempt_after_s: float = 0.5
    """Realtime requests wait this long before a running request is preempted."""
    reserved_share: float = 0.1
    """The share of a model's slots that is kept for realtime requests, rounded down."""

    def reserved(self, slots: int) -> int:
        """How many of ``slots`` are reserved for realtime."""
        return int(self.reserved_share * slots + 1e-9)


@dataclass(frozen=True, slots=True)
class PreemptibleRequest:
    """A running request of a lower tier that can go on elsewhere or later.

    ``remaining_s`` is how long it will probably keep its slot; ``lost_s`` what is done of it that would have
    to be done again.
    """

    number: int
    view: DeploymentView
    tier: Tier
    remaining_s: float
    lost_s: float


def choose_preempted(
    waiting: Sequence[PendingRequest],
    running: Iterable[PreemptibleRequest],
    *,
    rules: PreemptRules,
    borrowed: int,
    departures_per_s: float,
    now: float,
) -> list[int]:
    """Returns the numbers of the requests that give way, each for one of ``waiting``.

    ``waiting`` are the realtime requests that are next, in order of turns, without those for whom a slot is
    free or coming free. ``borrowed`` slots of the reserve are not realtime's at present.
    """
    running = list(running)
    ends_s = sorted(each.remaining_s for each in running)
    candidates = sorted(running, key=lambda each: (each.tier is not Tier.BATCH, each.lost_s, each.number))
    chosen: list[int] = []
    for place, item in enumerate(waiting, 1):
        expected_s = place / departures_per_s if departures_per_s > 0 else float("inf")
        if place <= len(ends_s):
            expected_s = min(expected_s, ends_s[place - 1])
        wait_s = max(expected_s, now - item.arrived_s)
        if wait_s < rules.preempt_after_s:
            continue
        found = _first(candidates, item, expected_s, rules, borrowed=borrowed > len(chosen))
        if found is not None:
            candidates.remove(found)
            chosen.append(found.number)
    return chosen


def _first(
    candidates: Iterable[PreemptibleRequest],
    item: PendingRequest,
    expected_s: float,
    rules: PreemptRules,
    *,
    borrowed: bool,
) -> PreemptibleRequest | None:
    for each in candidates:
        gives_way = rules.preempt_batch if each.tier is Tier.BATCH else rules.preempt_standard
        if (gives_way or borrowed) and each.remaining_s >= expected_s and _suits(each.view, item):
            return each
    return None


def _suits(view: DeploymentView, item: PendingRequest) -> bool:
    """Whether a slot that comes free there is one for ``item``."""
    return view.usable and view.in_flight <= min(view.slots, view.cap) and view.may_take(item)
