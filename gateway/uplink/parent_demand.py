"""What waits at the parent's processes, for this gateway's own agents to hear of (PROTOCOL §7.6)."""

from collections.abc import Callable, Hashable, Mapping
from dataclasses import replace

from shared.link.session_slots import SessionSlots
from shared.process.timers import CallLater
from shared.protocol.demand import Demand


class UplinkSlots(SessionSlots):
    """Divides what is lent to the parent among its processes, and knows what waits there, less the requests
    that have come since. For a parent of one process nothing is divided here, but something may wait
    there."""

    def __init__(
        self,
        clock: Callable[[], float],
        on_change: Callable[[], None],
        call_later: CallLater,
        on_demand: Callable[[str], None],
    ) -> None:
        """``on_demand`` is told each model for which something else waits at the parent now."""
        super().__init__(clock, on_change, call_later)
        self._on_demand = on_demand
        self._by_session: dict[Hashable, dict[str, Demand]] = {}

    def waiting(self, model: str) -> Demand | None:
        """What waits for ``model`` at the parent, as this gateway's agents are told: with no weight, so that
        they lend for it only what no client of this gateway's processes wants. None: nothing."""
        there = [demands[model] for demands in self._by_session.values() if model in demands]
        if not there:
            return None
        count = sum(each.waiting for each in there)
        return Demand(count, 0, max(each.oldest_wait_s for each in there), 0.0)

    def came(self, session: Hashable, model: str) -> None:
        """A request for ``model`` has come from ``session``: one less waits there."""
        demands = self._by_session.get(session, {})
        demand = demands.pop(model, None)
        if demand is None:
            return
        if demand.waiting > 1:
            demands[model] = replace(demand, waiting=demand.waiting - 1)
        self._on_demand(model)

    def set_demands(self, session: Hashable, demands: Mapping[str, Demand], rtt_s: float | None) -> None:
        super().set_demands(session, demands, rtt_s)
        before = self._by_session.get(session, {})
        now = self._by_session[session] = {each: said for each, said in demands.items() if said.waiting}
        for model in before | now:
            self._on_demand(model)

    def set_linked(self, session: Hashable, linked: bool, rtt_s: float | None = None) -> None:
        super().set_linked(session, linked, rtt_s)
        if not linked:
            self._forget(session)

    def remove(self, session: Hashable) -> None:
        super().remove(session)
        self._forget(session)

    def _forget(self, session: Hashable) -> None:
        for model in self._by_session.pop(session, {}):
            self._on_demand(model)
