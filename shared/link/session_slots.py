"""The slots of all engines, divided among the sessions with a gateway's processes (PROTOCOL §4.7).

Holds one :class:`~shared.protocol.slot_shares.SlotShares` for each engine, and calls them in time. With a
gateway that is one process there is nothing to divide, and no session is added here.
"""

import asyncio
from collections.abc import Callable, Collection, Hashable, Mapping
from math import inf

from shared.process.timers import CallLater, Cancellable
from shared.protocol.demand import Demand
from shared.protocol.slot_shares import SlotShares


def _call_later(delay_s: float, call: Callable[[], None]) -> Cancellable:
    return asyncio.get_running_loop().call_later(delay_s, call)


class SessionSlots:
    """Belongs to the event loop's thread. ``on_change`` is called when the level of a session has changed
    other than by its own requests."""

    def __init__(
        self,
        clock: Callable[[], float],
        on_change: Callable[[], None],
        call_later: CallLater = _call_later,
    ) -> None:
        self._clock = clock
        self._on_change = on_change
        self._call_later = call_later
        self._engines: dict[str, SlotShares] = {}
        self._models: dict[str, frozenset[str]] = {}
        """Engine → the models of its deployments."""
        self._processes: dict[Hashable, str] = {}
        """Session → the process that it is with."""
        self._unlinked: set[Hashable] = set()
        """Sessions that have no tunnel just now."""
        self._demands: dict[Hashable, Mapping[str, Demand]] = {}
        self._timer: Cancellable | None = None
        self._timer_s = inf

    def __contains__(self, session: object) -> bool:
        return session in self._processes

    def __len__(self) -> int:
        return len(self._processes)

    # --- Sessions

    def add(self, session: Hashable, process: str) -> None:
        """``session`` has begun, with the process of that name."""
        self._processes[session] = process
        now = self._clock()
        for shares in self._engines.values():
            shares.add(session, process, now)
        self._changed()

    def remove(self, session: Hashable) -> None:
        """``session`` is over. Idempotent."""
        if self._processes.pop(session, None) is None:
            return
        self._demands.pop(session, None)
        self._unlinked.discard(session)
        for shares in self._engines.values():
            shares.remove(session, self._clock())
        self._changed()

    def set_linked(self, session: Hashable, linked: bool, rtt_s: float | None = None) -> None:
        """``session`` has lost its tunnel, or has one again, of that round trip if it is known."""
        if session not in self._processes:
            return
        (self._unlinked.discard if linked else self._unlinked.add)(session)
        for shares in self._engines.values():
            if rtt_s is not None:
                shares.set_rtt(session, rtt_s)
            shares.set_linked(session, linked, self._clock())
        self._changed()

    def set_demands(self, session: Hashable, demands: Mapping[str, Demand], rtt_s: float | None) -> None:
        """What waits at the session's process: model → what waits for it, whole each time."""
        if session not in self._processes:
            return
        self._demands[session] = demands
        for engine, shares in self._engines.items():
            if rtt_s is not None:
                shares.set_rtt(session, rtt_s)
            shares.set_demand(session, self._demand(session, engine), self._clock())
        self._changed()

    # --- Engines

    def offer(self, engine: str, models: Collection[str], limit: int) -> None:
        """``engine`` has these models, and should have ``limit`` requests at once."""
        self._models[engine] = frozenset(models)
        shares = self._engines.get(engine)
        if shares is None:
            shares = self._engines[engine] = SlotShares(engine)
            for session, process in self._processes.items():
                shares.add(session, process, self._clock())
                shares.set_demand(session, self._demand(session, engine), self._clock())
                shares.set_linked(session, session not in self._unlinked, self._clock())
        self.set_limit(engine, limit)

    def withdraw(self, engine: str) -> None:
        """There is no such engine any more; nothing runs there."""
        self._engines.pop(engine, None)
        self._models.pop(engine, None)

    def set_limit(self, engine: str, limit: int) -> None:
        """The engine should have ``limit`` requests at once."""
        shares = self._engines[engine]
        if shares.limit != limit:
            shares.set_limit(limit, self._clock())
            self._changed()

    # --- Requests

    def enter(self, session: Hashable, engine: str, *, beyond: bool = False) -> bool:
        """A request of ``session`` begins. False: the session has no slot there. ``beyond``: it gets one
        without, because an engine with several deployments has lent one slot to all of them."""
        shares = self._engines[engine]
        changes = shares.changes
        entered = shares.enter(session, self._clock(), beyond=beyond)
        if shares.changes != changes:
            self._changed()
        return entered

    def leave(self, session: Hashable, engine: str) -> None:
        """A request of ``session``, which may be over, has left the engine."""
        shares = self._engines[engine]
        changes = shares.changes
        shares.leave(session, self._clock())
        if shares.changes != changes:
            self._changed()

    def spare(self, session: Hashable, engine: str) -> int:
        """How many requests more than run for it ``session`` may have there; below 0: how many fewer."""
        return self._engines[engine].spare(session)

    # --- Steps

    def _demand(self, session: Hashable, engine: str) -> Demand:
        said, models = self._demands.get(session, {}), self._models[engine]
        waiting = [demand for model, demand in said.items() if model in models]
        if not waiting:
            return Demand()
        return Demand(
            sum(each.waiting for each in waiting),
            sum(each.realtime for each in waiting),
            max(each.oldest_wait_s for each in waiting),
            max(each.weight for each in waiting),
        )

    def _changed(self) -> None:
        now = self._clock()
        look_s = min((shares.next_look(now) for shares in self._engines.values()), default=inf)
        if look_s < self._timer_s:
            if self._timer is not None:
                self._timer.cancel()
            self._timer_s = look_s
            self._timer = self._call_later(max(0.0, look_s - now), self._look)
        self._on_change()

    def _look(self) -> None:
        self._timer, self._timer_s = None, inf
        for shares in self._engines.values():
            shares.look(self._clock())
        self._changed()
