"""What waits at the parent, as this gateway's own agents are to hear of it."""

from gateway.uplink.parent_demand import UplinkSlots
from shared.protocol.demand import Demand
from tests.gateway.fleet.manual_timers import Loop


class Uplink:
    """The slots of an uplink with sessions ``a`` and ``b``."""

    def __init__(self) -> None:
        loop = Loop()
        self.changed: list[str] = []
        self.slots = UplinkSlots(
            loop,
            lambda: None,
            lambda after_s, call: loop.call_at(loop() + after_s, call),
            self.changed.append,
        )

    def says(self, session: str, **waiting: int) -> None:
        demands = {model: Demand(count, count, 2.0, 7.0) for model, count in waiting.items()}
        self.slots.set_demands(session, demands, None)

    def count(self, model: str = "m") -> int:
        demand = self.slots.waiting(model)
        return 0 if demand is None else demand.waiting


def test_what_waits_at_all_processes_is_told_without_weight_and_urgency() -> None:
    uplink = Uplink()
    assert uplink.slots.waiting("m") is None
    uplink.says("a", m=3)
    uplink.says("b", m=1, n=2)
    assert uplink.slots.waiting("m") == Demand(4, 0, 2.0, 0.0)
    assert uplink.changed == ["m", "m", "n"]
    uplink.says("a")
    uplink.says("b", n=0)
    assert (uplink.count("m"), uplink.count("n")) == (0, 0)


def test_each_request_that_comes_is_one_less() -> None:
    uplink = Uplink()
    uplink.says("a", m=2)
    uplink.slots.came("a", "n")
    uplink.slots.came("b", "m")
    assert uplink.count() == 2
    uplink.slots.came("a", "m")
    assert uplink.count() == 1
    uplink.slots.came("a", "m")
    uplink.slots.came("a", "m")
    assert uplink.slots.waiting("m") is None


def test_a_session_without_a_tunnel_is_told_anew_and_one_that_is_over_wants_nothing() -> None:
    uplink = Uplink()
    for session in ("a", "b"):
        uplink.slots.add(session, session)
        uplink.says(session, m=1)
    uplink.slots.set_linked("a", False)
    assert uplink.count() == 1
    uplink.slots.set_linked("a", True)
    assert uplink.count() == 1
    uplink.slots.remove("b")
    uplink.slots.remove("b")
    assert uplink.count() == 0
