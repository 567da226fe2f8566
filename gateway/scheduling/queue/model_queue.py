"""Those who wait for one model, and how fast they get slots. Pure data, ``now`` is an argument."""

from collections import Counter as Tally
from collections.abc import Mapping

from gateway.scheduling.base import DeploymentConstraints
from gateway.scheduling.queue.drain import DrainRate
from gateway.scheduling.queue.order import QueueOrder
from gateway.scheduling.queue.tickets import Ticket


class ModelQueue:
    """The requests that wait for one model: a lane for each fit, so that one that fits nowhere blocks none
    of the others.

    Requests that come when nobody waits in line mostly have their slots in the same turn of the event loop.
    So they are in no lane until somebody must know their turns among each other (:meth:`line_up`).
    """

    def __init__(self, weights: Mapping[str, float], ageing_s: float, now: float) -> None:
        self.turns = QueueOrder[Ticket](weights, ageing_s, now)
        """The order of all waiting requests except ``newcomers``."""
        self.newcomers: dict[int, Ticket] = {}
        """Those who are in no lane, by number, in the order in which they came. Where there are any, nobody
        else waits."""
        self.lanes = Tally[DeploymentConstraints]()
        self.drain = DrainRate(now)
        self.without_slots_s = float("-inf")
        """When requests waited last and nothing had a slot at all, taken or free."""
        self.short_since_s = now
        """When requests began to wait that could not be given a slot."""
        self.promised_s: list[float] | None = None
        """For each rank, the latest time at which the client of a refused request was told to try again;
        None: none was told since a slot was free."""
        self.count = 0

    def put(self, ticket: Ticket, now: float) -> None:
        """``ticket`` waits from ``now`` on, when it ``entered``."""
        ticket.waiting = True
        newcomers = self.newcomers
        self.count += 1
        if len(newcomers) == self.count - 1 and not ticket.begun:
            newcomers[ticket.number] = ticket
            return
        self.line_up()
        self._put(ticket, now)

    def line_up(self) -> QueueOrder[Ticket]:
        """The turns of all who wait."""
        if self.newcomers:
            newcomers, self.newcomers = self.newcomers, {}
            for ticket in newcomers.values():
                self._put(ticket, ticket.entered_s)
        return self.turns

    def ahead_of(self, rank: int) -> int:
        """How many wait in this tier and those above it."""
        if self.newcomers:
            return sum(ticket.rank <= rank for ticket in self.newcomers.values())
        return self.turns.ahead_of(rank) if self.count else 0

    def remove(self, ticket: Ticket, now: float, departed: bool) -> None:
        """``ticket`` waits no more: it leaves for a slot (``departed``), or without one."""
        ticket.waiting = False
        self.count = count = self.count - 1
        drain = self.drain
        if departed and drain.backlogged:
            drain.departed(now)
        if departed and self.newcomers:
            del self.newcomers[ticket.number]
            self.turns.depart_alone(ticket, ticket.entered_s, now)
        else:
            self._take_out(ticket, now, departed=departed)
        if not count and drain.backlogged:
            drain.set_backlogged(False, now)

    def _put(self, ticket: Ticket, now: float) -> None:
        self.turns.put(ticket, now)
        self.lanes[ticket.lane] += 1

    def _take_out(self, ticket: Ticket, now: float, *, departed: bool) -> None:
        turns = self.line_up()
        if departed:
            turns.depart(ticket, now)
        else:
            turns.remove(ticket)
        self.lanes[ticket.lane] -= 1
        if not self.lanes[ticket.lane]:
            del self.lanes[ticket.lane]
