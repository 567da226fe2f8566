"""What the parent wants loaded is wanted until it is loaded, or cannot be."""

from gateway.scheduling.base import DeploymentConstraints
from gateway.uplink.load_wishes import COPY_HOLD_S, HOLD_S, NO_ROOM, NOT_ON_DEMAND, LoadWishes, NoLoads
from tests.support.clock import ManualClock

FIT = DeploymentConstraints("chat")


class Asked:
    def __init__(self) -> None:
        self.asked: list[str] = []
        self.beyond: list[int] = []
        self.why_not: str | None = None
        self.loaded = 0

    def wish(self, model: str, fit: DeploymentConstraints, beyond: int) -> str | None:
        assert fit is FIT
        self.asked.append(model)
        self.beyond.append(beyond)
        return self.why_not

    def copies(self, model: str, fit: DeploymentConstraints) -> int:
        return self.loaded


def made() -> tuple[LoadWishes, Asked, ManualClock]:
    asked, clock = Asked(), ManualClock()
    return LoadWishes(asked, clock), asked, clock


def test_it_is_asked_for_at_once_and_at_each_look_but_not_while_it_loads() -> None:
    wishes, asked, _ = made()
    wishes.begin("g", "m", FIT)
    wishes.begin("g", "m", FIT)
    assert asked.asked == ["m"]
    assert not wishes.look(lambda group: False)
    assert not wishes.look(lambda group: True)
    assert asked.asked == ["m", "m"]
    wishes.end("g")
    wishes.look(lambda group: False)
    assert (asked.asked, wishes.wanted("g")) == (["m", "m"], False)


def test_what_cannot_be_is_said_at_the_next_look_and_may_be_wanted_again() -> None:
    wishes, asked, _ = made()
    asked.why_not = "it is too large"
    wishes.begin("g", "m", FIT)
    assert (wishes.wanted("g"), wishes.why_failed("g")) == (True, None)
    assert wishes.look(lambda group: False)
    assert (wishes.wanted("g"), wishes.why_failed("g")) == (False, "it is too large")
    asked.why_not = None
    wishes.begin("g", "m", FIT)
    assert (wishes.wanted("g"), wishes.why_failed("g")) == (True, None)


def test_without_room_it_is_given_up_in_the_end_but_not_while_it_loads() -> None:
    wishes, _, clock = made()
    wishes.begin("g", "m", FIT)
    clock.advance(HOLD_S - 1.0)
    assert not wishes.look(lambda group: True)
    clock.advance(HOLD_S - 1.0)
    assert not wishes.look(lambda group: False)
    clock.advance(1.0)
    assert wishes.look(lambda group: False)
    assert wishes.why_failed("g") == NO_ROOM.format(HOLD_S)


def test_one_more_copy_is_beyond_those_there_were_and_given_up_sooner() -> None:
    wishes, asked, clock = made()
    asked.loaded = 2
    wishes.begin("g+2", "m", FIT, copy=True)
    asked.loaded = 3
    assert not wishes.look(lambda group: False)
    assert asked.beyond == [2, 2]
    clock.advance(COPY_HOLD_S)
    assert wishes.look(lambda group: False)
    assert wishes.why_failed("g+2") == NO_ROOM.format(COPY_HOLD_S)


def test_a_gateway_that_loads_nothing_on_demand_says_so() -> None:
    wishes = LoadWishes(NoLoads(), ManualClock())
    wishes.begin("g", "m", FIT)
    assert wishes.look(lambda group: False)
    assert wishes.why_failed("g") == NOT_ON_DEMAND
