"""A parent whose line is long has one more copy of a model loaded behind its child."""

from collections.abc import Mapping
from typing import Any

from gateway.dispatch.placement import PlacementSettings
from gateway.fleet.availability import Availability
from gateway.uplink.load_wishes import COPY_HOLD_S, NO_ROOM
from shared.protocol.messages import Command
from tests.gateway.fleet.fleet import Fleet
from tests.gateway.scheduling.placement.loadable import (
    FAILED,
    LOAD,
    LOADABLE,
    LOADED,
    LOADING,
    LoadingAgent,
    loadable,
    sample,
)
from tests.gateway.uplink.child import Child


class Above:
    """The parent of ``child``, which is told what that offers."""

    def __init__(self, child: Child) -> None:
        self.child = child
        self.fleet = Fleet(placement=PlacementSettings())
        self.uplink = self.fleet.connect("region")
        self.uplink.host = self._carry_out
        self.tell()

    def _carry_out(self, command: Mapping[str, Any]) -> None:
        result = self.child.capacity.carry_out(Command.read(command))
        self.uplink.endpoint.send_command(result.to_dict())

    def tell(self) -> None:
        """STATE and SLOTS of the child."""
        self.uplink.endpoint.send_state(self.child.capacity.state())
        self.uplink.endpoint.send_slots(self.child.capacity.levels(None))
        self.fleet.settle()

    def seconds(self, count: int) -> None:
        for _ in range(count):
            self.fleet.advance(1.0)
            self.child.capacity.observe()
            self.child.fleet.advance(1.0)
            self.tell()


def _long_line(above: Above) -> None:
    for _ in range(30):
        above.fleet.submit()


def test_a_long_line_has_one_more_copy_loaded_behind_the_child_and_uses_it() -> None:
    child = Child(placement=PlacementSettings())
    first, second, third = (
        LoadingAgent(child.fleet, loadable("m", status=status, load_s=10.0), name=name)
        for name, status in (("a", LOADED), ("b", LOADABLE), ("c", LOADABLE))
    )
    above = Above(child)
    assert above.fleet.registry.index.availability("m", "chat") is Availability.SERVED
    above.seconds(3)
    assert second.commands == third.commands == [], "nothing waits"
    _long_line(above)
    above.seconds(3)
    assert (first.commands, second.commands, third.commands) == ([], [(LOAD, "m")], [])
    assert len(above.uplink.open_streams) == 1
    second.become("m", LOADING)
    above.seconds(2)
    second.loaded("m")
    above.tell()
    assert len(above.uplink.open_streams) == 2, "what waits goes there"
    assert sample(above.fleet, "trunkline_model_loads_total", model="m", outcome="failed") in (None, 0.0)


def test_a_copy_that_fails_behind_the_child_is_not_asked_for_again_at_once() -> None:
    child = Child(placement=PlacementSettings())
    LoadingAgent(child.fleet, loadable("m", status=LOADED, load_s=10.0), name="a")
    full = LoadingAgent(child.fleet, loadable("m", memory=20, load_s=10.0), name="b")  # it has room for 10
    above = Above(child)
    _long_line(above)
    above.seconds(int(COPY_HOLD_S) + 2)
    failed = sample(above.fleet, "trunkline_model_loads_total", model="m", outcome="failed")
    copy = child.capacity.state().deployments[-1]
    assert (failed, copy.status, copy.reason) == (1.0, FAILED, NO_ROOM.format(COPY_HOLD_S))
    assert full.commands == []
    assert len(above.uplink.open_streams) == 1, "what is loaded serves on"
    above.seconds(2)
    assert child.capacity.state().deployments[-1].status is FAILED
