"""Tells agents what waits here, so that they divide their slots among processes (PROTOCOL §4.7).

An agent is told at once when something waits and it believes that nothing does; soon when what waits is
twice what it believes or more, or half of it or less; otherwise once a second. Both sides take an OPEN for
one request less. While none waits, requests that run and are to go on at another agent are told of as if they
did.

Requests come in crowds. An agent that hears a second later how large one is leaves slots where nothing waits:
with sixteen gateways on agents of few slots, the 99th percentile of the wait was twenty times as long.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from math import ceil, inf
from typing import Protocol
from weakref import WeakKeyDictionary

from gateway.domain.timers import Timers
from shared.process.timers import Cancellable
from shared.protocol.demand import Demand
from shared.protocol.errors import SessionClosed

EVERY_S = 1.0
"""How often an agent that knows that something waits is told how much, while it does not change much."""

SOON_S = 0.1
"""How often at most it is told that it has changed much, ..."""

PER_AGENT_S = 0.001
"""... times the agents that serve the model where that is more, so that a gateway sends no more than a
thousand of these in a second."""


class _Model(Protocol):
    @property
    def model(self) -> str: ...


class DemandEndpoint(Protocol):
    """Where DEMAND is sent; :class:`shared.protocol.endpoint.SessionEndpoint`."""

    def send_demand(self, demands: Mapping[str, Demand]) -> None:
        """Raises SessionClosed."""
        ...


class DemandSession(Protocol):
    """What is used of an agent's session."""

    @property
    def endpoint(self) -> DemandEndpoint: ...

    @property
    def closed(self) -> bool: ...

    @property
    def deployments(self) -> Mapping[str, _Model]: ...


@dataclass(slots=True)
class _Borrowing:
    """Slots that are wanted for requests which run elsewhere, until some time."""

    slots: int
    ends: Cancellable


@dataclass(slots=True)
class _Told:
    waiting: dict[str, int] = field(default_factory=dict)
    """What the agent believes waits, by model; models of which nothing does are left out."""
    weightless: frozenset[str] = frozenset()
    """Those of them that wait at a gateway that this one is an agent of, or that are borrowed for."""
    at_s: float = -inf
    timer: Cancellable | None = None
    timer_s: float = inf


class DemandSender:
    """Belongs to the event loop's thread."""

    def __init__(
        self,
        timers: Timers,
        waiting: Callable[[str], Demand | None],
        serving: Callable[[str], Iterable[DemandSession]],
    ) -> None:
        """``waiting`` says what waits for a model, None if nothing; ``serving`` who serves it."""
        self._timers = timers
        self._waiting = waiting
        self._serving = serving
        self.passed_on: Callable[[str], Demand | None] = lambda model: None
        """What waits for a model at a gateway that this one is an agent of. Agents are told of it while
        nothing waits here."""
        self._told: WeakKeyDictionary[DemandSession, _Told] = WeakKeyDictionary()
        self.tells = False
        """An agent was added. As long as none was, nothing need be reported, and no session looked up."""
        self._borrowing: dict[str, _Borrowing] = {}

    def add(self, session: DemandSession) -> None:
        """Its agent knows DEMAND and has been told nothing: its session has begun or has a tunnel again. What
        it was told before, it forgot with the tunnel."""
        before = self._told.get(session)
        if before is not None and before.timer is not None:
            before.timer.cancel()
        self._told[session] = _Told()
        self.tells = True
        for model in {deployment.model for deployment in session.deployments.values()}:
            self.look(model)

    def __len__(self) -> int:
        return len(self._told)

    def __contains__(self, session: object) -> bool:
        return session in self._told

    def look(self, model: str) -> None:
        """What waits for ``model`` may have changed."""
        if not (self.tells and self._told):
            return
        demand, told_of = self._demand(model), self._told
        asked = {each: told_of[each] for each in self._serving(model) if each in told_of}
        share = 0 if demand is None else _part(demand.waiting, len(asked))
        weighs = demand is not None and demand.weight > 0
        soon_s = min(EVERY_S, max(SOON_S, len(asked) * PER_AGENT_S))
        for session, told in asked.items():
            if not session.closed:
                other = model in told.waiting and weighs is (model in told.weightless)
                self._tell(session, told, told.waiting.get(model, 0), share, soon_s, other=other)

    def borrow(self, model: str, slots: int, for_s: float) -> None:
        """So many requests that run could go on at agents whose slots lie idle at other processes of the
        gateway. For ``for_s`` those agents are asked for them, as far as nothing waits that wants them; with
        0 they are asked no more."""
        before = self._borrowing.pop(model, None)
        if before is not None:
            before.ends.cancel()
        if slots > 0:
            ends = self._timers.call_at(self._timers.time() + for_s, lambda: self.borrow(model, 0, 0.0))
            self._borrowing[model] = _Borrowing(slots, ends)
        if before is not None or slots > 0:
            self.look(model)

    def opened(self, session: DemandSession, model: str) -> None:
        """A request for ``model`` was sent there."""
        told = self._told.get(session)
        if told is not None and (left := told.waiting.pop(model, 0)) > 1:
            told.waiting[model] = left - 1

    def _tell(
        self, session: DemandSession, told: _Told, believed: int, share: int, soon_s: float, *, other: bool
    ) -> None:
        """``believed`` requests wait, as the agent sees it; ``share`` really do. ``other``: others' than it
        believes, of this gateway or of one above."""
        if believed == share == 0:
            return
        much = other or share >= 2 * believed or 2 * share <= believed
        due_s = told.at_s + (soon_s if much else EVERY_S)
        if (share and not believed) or self._timers.time() >= due_s:
            self._send(session, told)
        elif (other or share != believed) and due_s < told.timer_s:
            if told.timer is not None:
                told.timer.cancel()
            told.timer_s = due_s
            told.timer = self._timers.call_at(due_s, lambda: self._send(session, told))

    def _demand(self, model: str) -> Demand | None:
        return self._waiting(model) or self.passed_on(model) or self._borrowed(model)

    def _borrowed(self, model: str) -> Demand | None:
        """With no weight: what waits at any process of this gateway comes first."""
        borrowing = self._borrowing.get(model)
        return None if borrowing is None else Demand(borrowing.slots, 0, 0.0, 0.0)

    def _share(self, model: str, waiting: int) -> int:
        return _part(waiting, len({each for each in self._serving(model) if each in self._told}))

    def _send(self, session: DemandSession, told: _Told) -> None:
        if told.timer is not None:
            told.timer.cancel()
            told.timer, told.timer_s = None, inf
        if session.closed:
            return
        demands: dict[str, Demand] = {}
        for model in {deployment.model for deployment in session.deployments.values()}:
            demand = self._demand(model)
            if demand is not None:
                share = self._share(model, demand.waiting)
                realtime = min(share, demand.realtime)
                demands[model] = Demand(share, realtime, demand.oldest_wait_s, demand.weight)
        told.waiting = {model: demand.waiting for model, demand in demands.items()}
        told.weightless = frozenset(model for model, demand in demands.items() if not demand.weight)
        told.at_s = self._timers.time()
        try:
            session.endpoint.send_demand(demands)
        except SessionClosed:
            pass  # it is told nothing any more


def _part(waiting: int, agents: int) -> int:
    """Each agent is asked for its part: to all of them one request would be one each."""
    return ceil(waiting / max(1, agents))
