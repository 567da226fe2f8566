"""Those who wait in the simulated gateway: in the gateway's own order, or first come, first served."""

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from types import MappingProxyType

from gateway.domain.request import Tier
from gateway.scheduling.base import PendingRequest
from gateway.scheduling.queue.fair import QueuedRequest
from gateway.scheduling.queue.order import QueueOrder
from shared.protocol.demand import Demand

AGEING_S = 20.0
PATIENCE_S = 60.0
"""The gateway's defaults: when a tier that waits gets slots whatever waits in higher ones, and when one
without a deadline is due."""

_RANKS = {Tier.REALTIME: 0, Tier.STANDARD: 1, Tier.BATCH: 2}


@dataclass(slots=True, eq=False, kw_only=True)
class _Turn(QueuedRequest):
    item: PendingRequest


class FairQueue:
    """Everybody who waits for a slot, in the gateway's order: tiers, tenants' shares, deadlines, ageing.

    Those who need the ``large`` deployments are kept apart from the others, so that neither holds up the
    other.
    """

    def __init__(
        self, weights: Mapping[str, float] = MappingProxyType({}), ageing_s: float = AGEING_S
    ) -> None:
        """``weights`` are those of tenants; one that is not named has 1."""
        self._turns = QueueOrder[_Turn](weights, ageing_s, 0.0)
        self._waiting: dict[int, _Turn] = {}
        self._departed: dict[int, _Turn] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    def enter(self, item: PendingRequest, now: float, *, large: bool) -> None:
        """A request came."""
        due_s = now + PATIENCE_S if item.deadline_s is None else item.deadline_s
        turn = _Turn(
            number=item.number,
            rank=_RANKS[item.tier],
            tenant=item.tenant,
            lane=large,
            work=item.work,
            due_s=due_s,
            item=item,
        )
        self._put(turn, now)

    def come_back(self, item: PendingRequest, now: float, *, large: bool) -> None:
        """A request that left for a slot lost it."""
        turn = self._departed.pop(item.number)
        turn.begun = True
        self._put(turn, now)

    def leave(self, item: PendingRequest, now: float, *, departed: bool) -> None:
        """A request leaves for a slot (``departed``), or because it waited too long."""
        turn = self._waiting.pop(item.number)
        if departed:
            self._turns.depart(turn, now)
            self._departed[turn.number] = turn
        else:
            self._turns.remove(turn)

    def over(self, item: PendingRequest, work: float, now: float) -> None:
        """A request that departed is complete. It cost ``work``, in the unit of
        :func:`~gateway.scheduling.base.estimated_work`."""
        self._turns.settle(self._departed.pop(item.number), work, now)

    def front(self, limit: int, now: float) -> Sequence[PendingRequest]:
        """The next ``limit``, of each of the two kinds. They stay where they are."""
        if len(self._waiting) == 1:  # most often, and then there is no order to look for
            return [turn.item for turn in self._waiting.values()]
        return [turn.item for turn in self._turns.first({False: limit, True: limit}, now)]

    def share(self) -> None:
        """There are other gateways."""
        self._turns.record_given()

    def take_given(self) -> dict[tuple[int, str], float]:
        """See :class:`~gateway.scheduling.queue.order.QueueOrder`."""
        return self._turns.take_given()

    def note_elsewhere(self, told: Mapping[tuple[int, str], float], now: float) -> None:
        """See :class:`~gateway.scheduling.queue.order.QueueOrder`."""
        self._turns.note_elsewhere(told, now)

    def demand(self, now: float) -> Demand | None:
        """What waits, as an agent is told; None when nothing does."""
        if not self._waiting:
            return None
        oldest_s = min((each for each in self._turns.oldest() if each is not None), default=now)
        realtime = self._turns.ahead_of(_RANKS[Tier.REALTIME])
        return Demand(len(self._waiting), realtime, max(0.0, now - oldest_s), self._turns.weight())

    def tenants(self) -> set[str]:
        """Whose requests wait."""
        return {turn.tenant for turn in self._waiting.values()}

    def _put(self, turn: _Turn, now: float) -> None:
        self._waiting[turn.number] = turn
        self._turns.put(turn, now)


class FifoQueue:
    """First come, first served: the same methods as :class:`FairQueue`."""

    def __init__(self) -> None:
        self._items: tuple[OrderedDict[int, PendingRequest], ...] = (OrderedDict(), OrderedDict())

    def __len__(self) -> int:
        return sum(map(len, self._items))

    def enter(self, item: PendingRequest, now: float, *, large: bool) -> None:
        self._items[large][item.number] = item

    def come_back(self, item: PendingRequest, now: float, *, large: bool) -> None:
        self._items[large][item.number] = item
        self._items[large].move_to_end(item.number, last=False)

    def leave(self, item: PendingRequest, now: float, *, departed: bool) -> None:
        for items in self._items:
            items.pop(item.number, None)

    def over(self, item: PendingRequest, work: float, now: float) -> None:
        """Nothing is charged here."""

    def front(self, limit: int, now: float) -> Sequence[PendingRequest]:
        small, large = (list(islice(items.values(), limit)) for items in self._items)
        return sorted(small + large, key=lambda item: item.number) if large else small

    def tenants(self) -> set[str]:
        """See :class:`FairQueue`."""
        return {item.tenant for items in self._items for item in items.values()}
