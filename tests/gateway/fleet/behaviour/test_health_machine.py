"""Whatever happens to deployments in any order, their health stays consistent."""

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from gateway.fleet.deployment import Deployment
from gateway.fleet.health import PANIC_S
from gateway.scheduling.base import NO_CAP
from gateway.scheduling.health.failover import Trouble
from tests.gateway.fleet.health_site import Site


class HealthMachine(RuleBasedStateMachine):
    """Deployments come, fail, succeed, stall, leave and return in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.site = Site()
        self.there: dict[str, Deployment] = {}

    @rule(name=st.sampled_from("abcd"), slots=st.integers(0, 5))
    def one_comes_or_says_how_many_slots(self, name: str, slots: int) -> None:
        if name not in self.there:
            self.there[name] = self.site.join(name, slots)
        else:
            self.there[name].slots = slots
            self.site.index.update(self.there[name])
        self.site.settle()

    @rule(name=st.sampled_from("abcd"))
    def one_leaves(self, name: str) -> None:
        if name in self.there:
            self.site.leave(self.there.pop(name))

    @rule(name=st.sampled_from("abcd"), suspended=st.booleans())
    def a_tunnel_goes_or_comes(self, name: str, suspended: bool) -> None:
        if name in self.there:
            self.there[name].session.suspended = suspended
            self.site.index.update(self.there[name])
            self.site.settle()

    @rule(name=st.sampled_from("abcd"))
    def one_takes_a_request(self, name: str) -> None:
        if name in self.there and self.there[name].free:
            self.site.take(self.there[name])

    @rule(pick=st.integers(0, 99), outcome=st.sampled_from([*Trouble, "whole", "whole", "left"]))
    def a_request_ends(self, pick: int, outcome: Trouble | str) -> None:
        if not self.site.running:
            return
        deployment, request = self.site.running[pick % len(self.site.running)]
        if isinstance(outcome, Trouble):
            self.site.health.failed(deployment, request, outcome, self.site.now)
        elif outcome == "whole":
            self.site.health.answered(deployment, request, self.site.now)
            self.site.health.succeeded(deployment, request, 0.1, 1.0, 10, self.site.now)
        self.site.give_back(deployment, request)

    @rule(by_s=st.sampled_from([0.05, 0.6, 3.0, 31.0]))
    def time_passes(self, by_s: float) -> None:
        self.site.advance(by_s)

    @invariant()
    def only_what_is_free_is_open(self) -> None:
        record = self.site.index.models["m"]
        assert record.open == {each.key: each for each in self.there.values() if each.free}
        there = [each for each in self.there.values() if not each.trial]
        assert record.slots == sum(min(each.slots, each.cap) for each in there)

    @invariant()
    def there_is_a_timer_exactly_where_time_changes_something(self) -> None:
        for each in self.there.values():
            assert each.health is not None
            due_s = each.health.next_change_s(each.slots, self.site.now)
            assert (due_s is None) == (each not in self.site.health._looks)
            assert each.cap == NO_CAP or due_s is not None or each.cap == each.in_flight + 1
        assert set(self.site.health._looks) <= set(self.there.values())

    @invariant()
    def somebody_is_tried_soon(self) -> None:
        here = [each for each in self.there.values() if not each.session.suspended]
        waits = [each.health.blocked_until_s - self.site.now for each in here if each.health and each.shut]
        if here and len(waits) == len(here):
            assert min(waits) <= PANIC_S

    def teardown(self) -> None:
        while self.site.running:
            self.site.give_back(*self.site.running[0])
        self.site.advance(400.0)
        for each in self.there.values():
            assert not each.shut
            each.session.suspended = False
            self.site.index.update(each)
            assert each.free >= min(1, each.slots)
        assert not self.site.loop.pending


TestHealthMachine = HealthMachine.TestCase


TestHealthMachine.settings = settings(
    max_examples=60, stateful_step_count=40, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
