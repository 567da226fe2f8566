"""A simulated agent lends its slots to several gateways by the agents' own rule."""

from gateway.tools.simulate.calendar import Calendar
from gateway.tools.simulate.devices import DEFAULT_MODEL, MODELS
from gateway.tools.simulate.fleet import DeploymentBuild, SimulatedDeployment, deployments_of, fleet_of
from gateway.tools.simulate.lent_slots import LentSlots, SimulatedSession
from shared.protocol.demand import Demand


class Lending:
    """One device with 4 slots, 40 ms from its gateways."""

    def __init__(self, gateways: int) -> None:
        self.calendar = Calendar()
        fleet, build = fleet_of("1*h100@40ms"), DeploymentBuild(slots=4)
        (first,) = deployments_of(fleet, MODELS[DEFAULT_MODEL], 16, build, late=True)
        self.seen: list[SimulatedDeployment] = [first, *(first.for_another() for _ in range(gateways - 1))]
        self.slots = LentSlots(self.calendar, self.seen, 4)
        self.slots.begin(0.0)

    @property
    def levels(self) -> list[int]:
        """As the gateways were told."""
        return [each.view.slots for each in self.seen]

    def pass_until(self, until_s: float) -> None:
        while self.calendar and self.calendar.next_s <= until_s:
            happen, subject = self.calendar.take()
            happen(subject, self.calendar.now_s)
        self.calendar.now_s = until_s


def test_at_first_each_has_its_part() -> None:
    assert sorted(Lending(3).levels) == [1, 1, 2]
    assert Lending(4).levels == [1] * 4


def test_idle_slots_go_where_something_waits_and_the_giver_is_told_first() -> None:
    lending = Lending(2)
    changes = list[tuple[int, float, int]]()
    for number, site in enumerate(lending.seen):
        site.on_level = lambda n=number, s=site: changes.append((n, lending.calendar.now_s, s.view.slots))  # type: ignore[misc]
    session = SimulatedSession(lending.calendar, lending.seen[0], lending.slots)
    session.send_demand({DEFAULT_MODEL: Demand(4)})
    lending.pass_until(0.5)
    assert lending.levels == [4, 0]
    assert changes[0][:2] == (1, 0.04), "20 ms there, 20 ms back"
    assert changes[-1] == (0, 0.08, 4), "a round trip later no request can cross"


def test_one_that_comes_too_late_is_refused() -> None:
    lending = Lending(2)
    one, other = lending.seen
    lending.slots.demand(one, Demand(4), 0.0)
    assert lending.slots.enter(other, 0.01), "it crossed"
    assert lending.slots.enter(other, 0.01)
    assert not lending.slots.enter(other, 0.2)


def test_what_was_sent_before_the_agent_was_lost_arrives_nowhere() -> None:
    lending = Lending(2)
    session = SimulatedSession(lending.calendar, lending.seen[0], lending.slots)
    session.send_demand({DEFAULT_MODEL: Demand(4)})
    lending.seen[0].device.epoch += 1
    lending.slots.end()
    lending.pass_until(1.0)
    assert lending.levels == [0, 0]
    lending.slots.begin(1.0)
    lending.pass_until(2.0)
    assert lending.levels == [2, 2]
