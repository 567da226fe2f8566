"""The agent of a simulated device that lends its slots to several gateways (PROTOCOL §4.7), and the lines
between them.

The rule is the agents' own. Every message takes half a round trip, and none overtakes another.
"""

import math
from collections.abc import Callable, Mapping, Sequence

from gateway.tools.simulate.calendar import Calendar
from gateway.tools.simulate.fleet import SimulatedDeployment
from shared.protocol.demand import Demand
from shared.protocol.slot_shares import SlotShares


class LentSlots:
    """The slots of one device. ``deployments`` is what each gateway sees of it."""

    def __init__(self, calendar: Calendar, deployments: Sequence[SimulatedDeployment], limit: int) -> None:
        self._calendar = calendar
        self._deployments = deployments
        self._limit = limit
        self._shares = SlotShares("", 0)
        self._told: dict[SimulatedDeployment, int] = {}
        self._look_s = math.inf
        self.up = False

    def begin(self, now: float) -> None:
        """The agent is there, and every gateway has its session from now on."""
        first = self._deployments[0]
        self._shares = SlotShares(first.view.key, self._limit)
        for number, deployment in enumerate(self._deployments):
            self._shares.add(deployment, str(number), now)
            self._shares.set_rtt(deployment, deployment.view.rtt_s)
        # As if the sessions had begun one after the other some time ago: no slot is on its way between them.
        now = self._settled(now)
        self._told = {each: self._shares.level(each) for each in self._deployments}
        for deployment, level in self._told.items():
            deployment.view.slots = level
        self._look_s, self.up = math.inf, True
        self._publish(now)

    def end(self) -> None:
        """The agent is gone with all that ran there."""
        self.up = False
        for deployment in self._deployments:
            deployment.view.slots = 0

    def enter(self, deployment: SimulatedDeployment, now: float) -> bool:
        """A request has come from the gateway that sees ``deployment``. False: it is refused."""
        entered = self._shares.enter(deployment, now)
        self._publish(now)
        return entered

    def leave(self, deployment: SimulatedDeployment, now: float) -> None:
        """A request has left the engine. Levels that fall leave before its end does."""
        self._shares.leave(deployment, now)
        self._publish(now)

    def demand(self, deployment: SimulatedDeployment, demand: Demand, now: float) -> None:
        """A DEMAND has come."""
        self._shares.set_demand(deployment, demand, now)
        self._publish(now)

    def _settled(self, now: float) -> float:
        while (look_s := self._shares.next_look(now)) < math.inf:
            now = look_s
            self._shares.look(now)
        return now

    def _publish(self, now: float) -> None:
        """Tell each gateway its level, if it is another one than it was told last."""
        for deployment in self._deployments:
            level = self._shares.level(deployment)
            if self._told[deployment] != level:
                self._told[deployment] = level
                told = deployment, level, deployment.device.epoch
                self._calendar.plan(now + deployment.one_way_s, _take_level, told)
        look_s = self._shares.next_look(now)
        if look_s < self._look_s:
            self._look_s = look_s
            self._calendar.plan(look_s, self._look, deployment.device.epoch)

    def _look(self, epoch: int, now: float) -> None:
        if epoch == self._deployments[0].device.epoch and now >= self._look_s:
            self._look_s = math.inf
            self._shares.look(now)
            self._publish(now)


def _take_level(told: tuple[SimulatedDeployment, int, int], now: float) -> None:
    """SLOTS has come to its gateway."""
    deployment, level, epoch = told
    if epoch == deployment.device.epoch:
        deployment.view.slots = level
        deployment.on_level()


class SimulatedSession:
    """A gateway's session with the agent of one device: the line on which its DEMAND goes. Implements
    :class:`gateway.cluster.demand.DemandSession`."""

    def __init__(
        self,
        calendar: Calendar,
        deployment: SimulatedDeployment,
        lent: LentSlots,
        on_sent: Callable[[], None] = lambda: None,
    ) -> None:
        """``on_sent`` is called with each DEMAND."""
        self.closed = False
        self._on_sent = on_sent
        self._calendar = calendar
        self._deployment = deployment
        self._lent = lent
        self.deployments = {deployment.view.key: deployment.view}

    @property
    def endpoint(self) -> "SimulatedSession":
        return self

    def send_demand(self, demands: Mapping[str, Demand]) -> None:
        """See :class:`~shared.protocol.endpoint.SessionEndpoint`."""
        self._on_sent()
        demand = demands.get(self._deployment.view.model, Demand())
        told = demand, self._deployment.device.epoch
        self._calendar.plan(self._calendar.now_s + self._deployment.one_way_s, self._arrive, told)

    def _arrive(self, told: tuple[Demand, int], now: float) -> None:
        demand, epoch = told
        if self._lent.up and epoch == self._deployment.device.epoch:
            self._lent.demand(self._deployment, demand, now)
