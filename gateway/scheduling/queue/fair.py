"""A fair share for every tenant: start-time fair queueing over the work of requests.
Pure data.

Every tenant has a virtual time: the work it was given, divided by its weight. The tenant whose virtual
time is least is next, so one whose prompts are long pays for them by being next less often. Whoever
comes after a pause begins at the virtual time of those being served: nobody saves up. Virtual times
within one ``slack`` of each other count as equal, and then the earliest deadline decides.

**Bound.** Of two tenants that both always have requests waiting which fit the same slots, the one got no
more work for its weight than the other plus ``slack`` plus its own largest request, since both began to
wait. (Goyal, Vin and Cheng, "Start-time Fair Queueing", SIGCOMM 1996, show it for one server and no
slack.)

What a request costs is an estimate when it is given its slot; :meth:`TierQueue.settle` corrects it.
"""

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Generic, TypeVar

from gateway.scheduling.queue.heap import Entry, Heap, Key, Member, place
from gateway.scheduling.recent import ArrivalRate

SLACK_WORK = 512.0
"""Two answers' worth or so (work is counted in output tokens, see ``estimated_work``): small requests of
many tenants are served in the order of their deadlines."""

LAG_WORK = 16 * SLACK_WORK
"""A tenant may be behind by this at most, because nothing took its requests. More is forgotten, so that it
does not displace others for long afterwards."""

DEBT_WORK = 400 * SLACK_WORK
"""Corrections put a tenant ahead of the others by this at most. So it waits for this much work of theirs at
most."""

ITERATIONS = 4
"""Rounds of a fixed point: the arrivals depend on the wait, and the wait on the arrivals."""

SAMPLE = 32
"""Tenants considered in an estimate of how many requests are ahead; the others are taken to be like them."""

WORK_WEIGHT = 0.1
"""Weight of the latest request in what a tenant's requests cost on average."""

MOST_MOVED = 64
"""Lines that may be out of place before they are put in order."""

IDLE_FLOWS = 1024
"""Tenants without waiting requests that are remembered, for what they owe."""


@dataclass(slots=True, eq=False)
class QueuedRequest(Member):
    """A request that waits, or waited, for its turn.

    ``rank`` is that of its tier, 0 the first. Requests of one ``lane`` fit the same slots. ``due_s``
    orders the requests of one tenant. Those that have ``begun`` go before all others of their tier and
    have been paid for.
    """

    number: int
    rank: int
    tenant: str
    lane: Hashable
    work: float
    due_s: float
    begun: bool = False
    charged: float = 0.0
    """What its tenant was charged for it so far."""
    entry: Entry | None = field(default=None, repr=False)


T = TypeVar("T", bound=QueuedRequest)


class TenantQueue(Member, Generic[T]):
    """One tenant's requests of one lane."""

    __slots__ = ("flow", "lane", "turns")

    def __init__(self, flow: "Flow[T]", lane: Hashable) -> None:
        self.entry = None
        self.flow = flow
        self.lane = lane
        self.turns: Heap[T] = Heap()


class Flow(Generic[T]):
    """One tenant: its share, what waits of it and how much it was given."""

    __slots__ = ("arrivals", "count", "lines", "typical_work", "virtual", "weight", "work")

    def __init__(self, weight: float, virtual: float, now: float) -> None:
        self.weight = weight
        self.virtual = virtual
        self.arrivals = ArrivalRate(now)
        self.typical_work = 1.0
        self.lines: dict[Hashable, TenantQueue[T]] = {}
        self.count = 0
        self.work = 0.0
        """Work of the requests that wait."""

    def arrived(self, work: float, now: float) -> None:
        """One more request of the tenant has come."""
        self.arrivals.arrived(now)
        typical = self.typical_work
        typical += (work - typical) * (WORK_WEIGHT if typical > 1.0 else 1.0)
        self.typical_work = typical if typical > 1.0 else 1.0


class QueueView:
    """An estimate of how many requests of other tenants go before a request, from the tenants seen last."""

    __slots__ = ("_ahead", "_coming", "_flows", "_waiting")

    def __init__(self) -> None:
        self._ahead = 0.0
        self._waiting = 0
        self._flows: list[Flow[Any]] = []
        self._coming: list[tuple[Flow[Any], float]] = []
        """Tenants with room in their shares, and how many requests that is."""

    def add(self, flow: Flow[Any], before: float, share: "TierQueue[Any]") -> None:
        """``before`` is the virtual time from which on others are too late; those who wait already have
        one slack more."""
        self._flows.append(flow)
        start = flow.virtual if flow.count else max(flow.virtual, share.virtual)
        if flow.count:
            room = max(0.0, before + share.slack - start) * flow.weight
            self._waiting += flow.count
            self._ahead += flow.count * min(1.0, room / max(flow.work, 1e-9))
        room = (before - start) * flow.weight - flow.work
        if room > 0:
            self._coming.append((flow, room / flow.typical_work))

    def waiting(self, total: int) -> float:
        """How many of ``total`` waiting requests go before it."""
        return total * (self._ahead / self._waiting) if self._waiting else float(total)

    def with_coming(self, base: float, others_per_s: float, departures_per_s: float, now: float) -> float:
        """``base`` and those who come before that many have got a slot."""
        if not self._coming or departures_per_s <= 0:
            return base
        seen_per_s = sum(flow.arrivals.per_s(now) for flow in self._flows)
        scale = max(1.0, others_per_s / max(seen_per_s, 1e-9))
        coming = [(flow.arrivals.per_s(now), most) for flow, most in self._coming]
        ahead = base
        for _ in range(ITERATIONS):
            wait_s = (ahead + 1) / departures_per_s
            ahead = base + scale * sum(min(per_s * wait_s, most) for per_s, most in coming)
        return ahead


class TierQueue(Generic[T]):
    """Those of one tier who wait, shared out among their tenants."""

    def __init__(self, weights: Mapping[str, float], now: float, slack: float = SLACK_WORK) -> None:
        """Tenants without a weight have 1."""
        self._weights = weights
        self.slack = slack
        self.arrivals = ArrivalRate(now)
        self._flows: dict[str, Flow[T]] = {}
        """Those who came last are the last."""
        self.lanes: dict[Hashable, Heap[TenantQueue[T]]] = {}
        """Tenants' lines, by lane; only those in which requests wait. Complete after
        :meth:`arrange_lines`."""
        self.begun: dict[Hashable, Heap[T]] = {}
        """Those whose answer has begun, by lane."""
        self.given: dict[str, float] | None = None
        """Work given since other gateways were told; None: there are none."""
        self.virtual = 0.0
        """The greatest virtual time of a tenant that got a slot: where tenants that come now begin."""
        self._alone: tuple[Key, int, T] | None = None
        """A request that waits alone is in no line until another one comes: most get their slot before
        that."""
        self._moved: dict[TenantQueue[T], None] = {}
        """Lines that are not where they belong in ``lanes``; :meth:`arrange_lines` puts them there."""
        self._most_flows = IDLE_FLOWS
        self.count = 0

    def put(self, turn: T, now: float) -> None:
        """``turn`` waits from ``now`` on."""
        self.count += 1
        self.arrivals.arrived(now)
        if turn.begun:
            self.begun.setdefault(turn.lane, Heap()).put((turn.number,), turn)
            return
        flow = self._flow(turn.tenant, now)
        self._flows[turn.tenant] = self._flows.pop(turn.tenant)
        flow.arrived(turn.work, now)
        if not flow.count:
            flow.virtual = max(flow.virtual, self.virtual)
        flow.count += 1
        flow.work += turn.work
        entry = place((turn.due_s, turn.number), turn)
        if self.count == 1:
            self._alone = entry
        else:
            self._split_up()
            self._queue(entry)

    def arrange_lines(self) -> None:
        """Have ``lanes`` hold all who wait, each line where it belongs."""
        self._split_up()
        if self._moved:
            moved, self._moved = self._moved, {}
            for line in moved:
                self._place(line)

    def only_line_turns(self, most: Mapping[Any, int]) -> list[T] | None:
        """The next turns, of each lane no more than ``most``, if all who wait are of one tenant and lane.
        Else None: it takes a look to say."""
        if self._alone is not None and self.count == 1:
            return [self._alone[2]] if most.get(self._alone[2].lane) else []
        self.arrange_lines()
        if self.begun or len(self.lanes) != 1:
            return None
        ((lane, heap),) = self.lanes.items()
        line = heap.first() if heap.count == 1 else None
        return None if line is None else line.turns.smallest(most.get(lane, 0))

    def remove(self, turn: T) -> None:
        """``turn`` does not wait any more."""
        self.count -= 1
        if turn.begun:
            heap = self.begun[turn.lane]
            heap.remove(turn)
            if not heap.count:
                del self.begun[turn.lane]
            return
        flow = self._flows[turn.tenant]
        flow.count -= 1
        flow.work = flow.work - turn.work if flow.count else 0.0
        if self._alone is not None:
            assert self._alone is turn.entry
            self._alone = turn.entry = None
            return
        line = flow.lines[turn.lane]
        line.turns.remove(turn)
        self._note_moved(line)
        if not line.turns.count:
            del flow.lines[turn.lane]

    def charge(self, turn: T, now: float) -> None:
        """``turn`` got its slot: charge its tenant. One whose answer has begun was charged before."""
        if turn.begun:
            return
        flow = self._flow(turn.tenant, now)
        virtual = self.after(flow, turn)
        self.virtual = max(self.virtual, flow.virtual)
        turn.charged += turn.work
        if self.given is not None:
            self.given[turn.tenant] = self.given.get(turn.tenant, 0.0) + turn.work
        self._move(flow, virtual)

    def settle(self, turn: T, work: float, now: float) -> None:
        """What ``turn`` was charged is too much or too little: it costs ``work``."""
        flow = self._flows.get(turn.tenant) or self._flow(turn.tenant, now)
        if self.given is not None:
            self.given[turn.tenant] = self.given.get(turn.tenant, 0.0) + work - turn.charged
        before, latest = flow.virtual, self.virtual
        virtual = before + (work - turn.charged) / flow.weight
        turn.charged = work
        if virtual < latest - LAG_WORK:
            virtual = latest - LAG_WORK
        elif virtual > before and virtual > latest + DEBT_WORK:
            virtual = max(before, latest + DEBT_WORK)
        if flow.count:
            self._move(flow, virtual)
        else:
            flow.virtual = virtual

    def note_elsewhere(self, told: Mapping[str, float], now: float) -> None:
        """The work that other gateways gave each tenant since this was called last. Where nobody waits they
        say where tenants that come now begin, else one that was alone there would owe it to all here."""
        flows = [(self._flows.get(tenant) or self._flow(tenant, now), work) for tenant, work in told.items()]
        if not self.count:
            self.virtual = max([self.virtual, *(flow.virtual for flow, work in flows if work > 0.0)])
        for flow, work in flows:
            lowest, highest = self.virtual - LAG_WORK, self.virtual + DEBT_WORK
            virtual = min(flow.virtual + work / flow.weight, max(flow.virtual, highest))
            self._move(flow, max(virtual, min(flow.virtual, lowest)))

    def ahead_of(self, tenant: str, departures_per_s: float, now: float) -> float:
        """How many will probably get a slot before a request of ``tenant`` that comes now: of those who
        wait, and of other tenants' that come meanwhile, for as many as their shares have room. Of very
        many tenants a part is looked at."""
        mine = self._flows.get(tenant)
        own = mine.count if mine is not None else 0
        behind = mine.work / mine.weight if mine is not None else 0.0
        virtual = max(mine.virtual if mine is not None else 0.0, self.virtual) + behind
        before = virtual // self.slack * self.slack
        seen = QueueView()
        for flow in islice(reversed(self._flows.values()), SAMPLE):
            if flow is not mine:
                seen.add(flow, before, self)
        begun = sum(heap.count for heap in self.begun.values())
        base = own + begun + seen.waiting(self.count - begun - own)
        others_per_s = self.arrivals.per_s(now) - (mine.arrivals.per_s(now) if mine is not None else 0.0)
        return seen.with_coming(base, others_per_s, departures_per_s, now)

    def charge_alone(self, turn: T, now: float) -> None:
        """``turn``, whose answer has not begun, came at ``now`` when none waited in line, and got its slot
        with others like it: :meth:`put`, :meth:`remove` and :meth:`charge` of each in turn."""
        self.arrivals.arrived(now)
        tenant, flows = turn.tenant, self._flows
        flow = flows.pop(tenant, None)
        if flow is None:
            flow = self._flow(tenant, now)
        else:
            flows[tenant] = flow
        work, virtual = turn.work, self.virtual
        flow.arrived(work, now)
        if flow.virtual > virtual:
            self.virtual = virtual = flow.virtual
        flow.virtual = virtual + work / flow.weight
        turn.charged += work
        if self.given is not None:
            self.given[tenant] = self.given.get(tenant, 0.0) + work

    def weight(self) -> float:
        """The sum of the weights of the tenants whose requests wait here."""
        return sum(flow.weight for flow in self._flows.values() if flow.count)

    # --- For a look at the next turns ---

    def key(self, virtual: float, turn: T) -> Key:
        """The key of a line with ``turn`` in front whose tenant has this virtual time; the smallest key is
        next."""
        return (virtual // self.slack, turn.due_s, turn.number)

    def after(self, flow: Flow[T], turn: T, virtual: float | None = None) -> float:
        """A tenant's virtual time once it was given ``turn``, from its own or from another ``virtual``
        on."""
        start = flow.virtual if virtual is None else virtual
        return max(start, self.virtual - LAG_WORK) + turn.work / flow.weight

    def reweigh(self) -> None:
        """The weights are other ones now: those who wait are shared out by them from here on."""
        for tenant, flow in self._flows.items():
            flow.weight = self._weights.get(tenant, 1.0)
            self._move(flow, flow.virtual)

    # --- Steps ---

    def _flow(self, tenant: str, now: float) -> Flow[T]:
        flow = self._flows.get(tenant)
        if flow is None:
            if len(self._flows) >= self._most_flows:
                self._forget()
            flow = self._flows[tenant] = Flow(self._weights.get(tenant, 1.0), self.virtual, now)
        return flow

    def _forget(self) -> None:
        """Forget tenants without waiting requests that owe nothing; all without, if that leaves too many."""
        kept = {name: each for name, each in self._flows.items() if each.count or each.virtual > self.virtual}
        if len(kept) >= IDLE_FLOWS:
            kept = {name: each for name, each in self._flows.items() if each.count}
        self._flows = kept
        self._most_flows = max(IDLE_FLOWS, 2 * len(kept))

    def _queue(self, entry: tuple[Key, int, T]) -> None:
        """Into the line of its tenant and lane."""
        turn = entry[2]
        flow = self._flows[turn.tenant]
        line = flow.lines.get(turn.lane)
        if line is None:
            line = flow.lines[turn.lane] = TenantQueue(flow, turn.lane)
        line.turns.insert(entry)
        self._note_moved(line)

    def _split_up(self) -> None:
        """Put the request that waited alone into a line."""
        if self._alone is not None:
            entry, self._alone = self._alone, None
            self._queue(entry)

    def _move(self, flow: Flow[T], virtual: float) -> None:
        flow.virtual = virtual
        for line in flow.lines.values():
            self._note_moved(line)

    def _note_moved(self, line: TenantQueue[T]) -> None:
        self._moved[line] = None
        if len(self._moved) > MOST_MOVED:
            self.arrange_lines()

    def _place(self, line: TenantQueue[T]) -> None:
        """Put ``line`` where it belongs among the lines of its lane, if a request is in it."""
        heap = self.lanes.get(line.lane)
        if heap is None:
            heap = self.lanes[line.lane] = Heap()
        if line.entry is not None:
            heap.remove(line)
        first = line.turns.first()
        if first is not None:
            heap.put(self.key(line.flow.virtual, first), line)
        elif not heap.count:
            del self.lanes[line.lane]
