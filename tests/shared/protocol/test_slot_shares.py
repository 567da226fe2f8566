"""How an agent's slots are divided among the processes of a gateway (PROTOCOL §4.7)."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from shared.protocol.demand import Demand
from shared.protocol.slot_shares import MOST_RTT_S, UNUSED_S, SlotShares, weighted_max_min
from tests.shared.protocol.slot_sharing import Process, SharingAgent

RTT_S = 0.04


def shares_of(limit: int, *names: str) -> SlotShares:
    shares = SlotShares("engine", limit)
    for name in names:
        shares.add(name, name, 0.0)
        shares.set_rtt(name, RTT_S)
    if names:
        shares.look(MOST_RTT_S)  # what was recalled for those that came later is theirs
    return shares


def levels(shares: SlotShares, *names: str) -> list[int]:
    return [shares.level(name) for name in names]


def test_one_session_has_everything_that_is_free() -> None:
    shares = shares_of(8, "a")
    assert shares.enter("a", 1.0)
    assert (shares.level("a"), shares.held("a")) == (8, 7)


def test_nothing_waits_and_all_have_the_same() -> None:
    names = [f"p{n}" for n in range(5)]
    shares = shares_of(32, *names)
    assert sorted(levels(shares, *names)) == [6, 6, 6, 7, 7]


def test_odd_slots_are_with_others_for_another_engine() -> None:
    names = [f"p{n}" for n in range(16)]
    seen = set()
    for engine in range(8):
        shares = SlotShares(f"engine-{engine}", 4)
        for name in names:
            shares.add(name, name, 0.0)
        shares.look(1.0)
        seen.add(tuple(name for name in names if shares.level(name)))
    assert all(len(holders) == 4 for holders in seen)
    assert len(seen) > 4


def test_an_open_changes_no_level_and_the_slot_stays_when_nothing_waits() -> None:
    shares = shares_of(4, "a", "b")
    before, changes = levels(shares, "a", "b"), shares.changes
    assert shares.enter("a", 1.0)
    assert levels(shares, "a", "b") == before
    shares.leave("a", 2.0)
    assert levels(shares, "a", "b") == before
    assert shares.changes == changes


def test_a_request_without_a_slot_is_refused() -> None:
    shares = shares_of(2, "a", "b")
    assert shares.enter("a", 1.0)
    assert not shares.enter("a", 1.0)
    assert shares.running == 1


def test_a_freed_slot_goes_to_whom_is_furthest_below_its_share() -> None:
    shares = shares_of(4, "a", "b")
    for session in "aabb":
        assert shares.enter(session, 1.0)
    shares.set_demand("a", Demand(5, weight=1.0), 1.0)
    shares.set_demand("b", Demand(5, weight=3.0), 1.0)
    shares.leave("a", 2.0)
    assert levels(shares, "a", "b") == [1, 3]
    shares.leave("b", 2.0)  # 3 of 4 is its share by weight
    assert levels(shares, "a", "b") == [1, 3]


def test_an_unused_slot_moves_to_demand_a_round_trip_after_it_was_taken_back() -> None:
    shares = shares_of(4, "a", "b")
    for _ in range(2):
        assert shares.enter("a", 1.0)
    shares.set_demand("a", Demand(1), 2.0)
    assert levels(shares, "a", "b") == [2, 1]
    assert shares.next_look(2.0) == 2.0 + RTT_S
    shares.look(2.0 + RTT_S)
    assert levels(shares, "a", "b") == [3, 1]


def test_an_open_that_crosses_a_lowered_level_still_finds_its_slot() -> None:
    shares = shares_of(2, "a", "b")
    assert shares.enter("a", 1.0)
    shares.set_demand("a", Demand(1), 2.0)
    assert levels(shares, "a", "b") == [1, 0]
    assert shares.enter("b", 2.01)
    assert levels(shares, "a", "b") == [1, 1]
    shares.look(9.0)
    assert levels(shares, "a", "b") == [1, 1]


def test_an_open_that_comes_later_is_refused() -> None:
    shares = shares_of(2, "a", "b")
    assert shares.enter("a", 1.0)
    shares.set_demand("a", Demand(1), 2.0)
    shares.look(2.0 + RTT_S)
    assert not shares.enter("b", 2.05)


def test_a_session_without_a_tunnel_gives_up_at_once_what_it_does_not_use() -> None:
    shares = shares_of(6, "a", "b")
    assert shares.enter("b", 1.0)
    shares.set_linked("b", False, 2.0)
    assert levels(shares, "a", "b") == [5, 1]
    shares.leave("b", 3.0)
    assert levels(shares, "a", "b") == [6, 0]
    shares.set_linked("b", True, 4.0)
    shares.look(4.0 + RTT_S)
    assert levels(shares, "a", "b") == [3, 3]


def test_what_runs_for_a_session_that_is_over_keeps_its_slots_until_it_has_left() -> None:
    shares = shares_of(4, "a", "b")
    assert shares.enter("b", 1.0)
    shares.remove("b", 2.0)
    assert (shares.level("a"), len(shares)) == (3, 1)
    shares.leave("b", 3.0)
    assert shares.level("a") == 4


def test_whoever_says_that_requests_wait_and_uses_no_slot_does_not_keep_it() -> None:
    shares = shares_of(2, "a", "b")
    shares.set_demand("b", Demand(9), 1.0)
    shares.look(1.0 + RTT_S)
    assert levels(shares, "a", "b") == [0, 2]
    shares.set_demand("a", Demand(1), 1.5)
    assert shares.level("b") == 1, "one is not its share any more"
    shares.look(1.5 + UNUSED_S)
    shares.look(1.6 + UNUSED_S)
    assert shares.level("a") >= 1


def test_a_level_falls_below_what_runs_for_realtime_requests_of_others() -> None:
    shares = shares_of(4, "a", "b")
    shares.set_demand("a", Demand(4), 1.0)
    shares.look(1.0 + RTT_S)
    for _ in range(4):
        assert shares.enter("a", 1.1)
    shares.set_demand("b", Demand(1), 2.0)
    assert shares.level("a") == 4, "who is no realtime request waits until a slot is free"
    shares.set_demand("b", Demand(1, realtime=1), 2.0)
    assert shares.level("a") == 3
    shares.leave("a", 2.1)
    assert levels(shares, "a", "b") == [3, 1]
    shares.set_demand("b", Demand(), 2.2)
    assert levels(shares, "a", "b") == [3, 1]


def test_demand_without_weight_gets_only_what_nobody_else_wants() -> None:
    """As a gateway passes on what waits at the one above it (PROTOCOL §7.6)."""
    shares = shares_of(4, "a", "b")
    shares.set_demand("a", Demand(9, 0, 9.0, 0.0), 1.0)
    shares.look(1.0 + MOST_RTT_S)
    assert levels(shares, "a", "b") == [4, 0], "nobody else wants any"
    for _ in range(4):
        assert shares.enter("a", 1.5)
    shares.set_demand("b", Demand(3, 3, 0.1, 1.0), 1.5)
    shares.set_demand("a", Demand(9, 0, 9.0, 0.0), 1.5)
    for _ in range(3):
        shares.leave("a", 2.0)
    assert (shares.level("b"), shares.held("a")) == (3, 0), "what is freed is for the other one's clients"
    shares.leave("a", 2.0)
    assert levels(shares, "a", "b") == [1, 3]


def test_a_lower_limit_takes_unused_slots_first_and_more_is_lent_when_it_rises() -> None:
    shares = shares_of(8, "a", "b")
    for _ in range(3):
        assert shares.enter("a", 1.0)
    shares.set_limit(4, 2.0)
    assert sum(levels(shares, "a", "b")) == 4
    assert shares.level("a") >= 3
    shares.set_limit(2, 3.0)
    assert levels(shares, "a", "b") == [3, 0]
    shares.leave("a", 4.0)
    shares.leave("a", 4.0)
    assert sum(levels(shares, "a", "b")) == 2
    shares.set_limit(6, 5.0)
    assert sum(levels(shares, "a", "b")) == 6


WANTS = st.dictionaries(st.integers(0, 9), st.tuples(st.integers(0, 50), st.floats(0.1, 9.0)), min_size=1)


@given(st.integers(0, 100), WANTS)
def test_shares_are_max_min_by_weight(limit: int, wanted: dict[int, tuple[int, float]]) -> None:
    wants, weights = ({each: pair[place] for each, pair in wanted.items()} for place in (0, 1))
    found = weighted_max_min(limit, wants, weights)  # type: ignore[arg-type]
    assert sum(found.values()) == pytest.approx(min(limit, sum(wants.values())))
    short = [found[each] / weights[each] for each in wants if found[each] < wants[each] - 1e-6]
    for each in wants:
        assert -1e-9 <= found[each] <= wants[each] + 1e-9
        assert all(found[each] / weights[each] <= other + 1e-6 for other in short)


class Sharing(RuleBasedStateMachine):
    """Several processes, messages under way, a limit that changes, sessions that come and go."""

    def __init__(self) -> None:
        super().__init__()
        self.agent = SharingAgent(8, lambda agent: self.nothing_is_lent_twice())
        self.number = 0
        self.come(0.01)
        self.come(0.03)

    @rule(delay_s=st.sampled_from([0.001, 0.01, 0.03, 0.1]))
    @precondition(lambda self: len(self.agent.processes) < 6)
    def come(self, delay_s: float) -> None:
        self.number += 1
        self.agent.add(f"p{self.number}", lambda: delay_s, float(1 + self.number % 3))

    @rule(which=st.integers(0, 9))
    @precondition(lambda self: len(self.agent.processes) > 1)
    def go(self, which: int) -> None:
        self.agent.remove(self.agent.processes[which % len(self.agent.processes)])

    @rule(which=st.integers(0, 9), count=st.integers(1, 12), runs_s=st.sampled_from([0.005, 0.2, 3.0]))
    def requests(self, which: int, count: int, runs_s: float) -> None:
        self.agent.processes[which % len(self.agent.processes)].request(runs_s, count)

    @rule(limit=st.integers(0, 16))
    def resize(self, limit: int) -> None:
        self.agent.set_limit(limit)

    @rule(passed_s=st.sampled_from([0.001, 0.02, 0.05, 0.3, 2.0]))
    def time_passes(self, passed_s: float) -> None:
        self.agent.clock.run_until(self.agent.clock.now + passed_s)

    def nothing_is_lent_twice(self) -> None:
        shares = self.agent.shares
        here = self.agent.processes
        lent = sum(shares.held(each) + shares.recalled(each) for each in here) + shares.running
        assert lent <= max(shares.limit, shares.running)
        assert all(shares.level(each) >= 0 for each in here)

    @invariant()
    def every_slot_is_lent(self) -> None:
        shares, here = self.agent.shares, self.agent.processes
        lent = sum(shares.held(each) + shares.recalled(each) for each in here) + shares.running
        assert lent >= shares.limit

    def teardown(self) -> None:
        """Whatever was done: with slots and time every request is served, and everything comes back."""
        self.agent.set_limit(max(4, self.agent.shares.limit))
        self.agent.clock.run_until(self.agent.clock.now + 3600.0)
        for each in self.agent.processes:
            assert not each.queue
            assert not each.in_flight
            assert each.level == self.agent.shares.level(each)
        assert not self.agent.shares.running


TestSharing = Sharing.TestCase
TestSharing.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)


@given(
    st.integers(2, 12),
    st.integers(1, 24),
    st.lists(st.sampled_from([0.001, 0.01, 0.02, 0.05, 0.1]), min_size=12, max_size=12),
    st.integers(0, 11),
)
@settings(deadline=None)
def test_no_slot_is_idle_for_more_than_two_round_trips_while_a_request_wants_it(
    processes: int, limit: int, delays: list[float], which: int
) -> None:
    agent = SharingAgent(limit)
    here = [agent.add(f"p{n}", lambda n=n: delays[n]) for n in range(processes)]  # type: ignore[misc]
    agent.clock.run_until(10.0)
    asks, rtt_s = here[which % processes], 2 * max(delays[:processes])
    asks.request(1000.0, limit)
    learnt_s = agent.clock.now + delays[which % processes]
    agent.clock.run_until(learnt_s + 2 * rtt_s + 1e-6)
    assert agent.shares.running == limit
    assert asks.refused == 0


def test_with_16_processes_hardly_any_request_is_refused() -> None:
    """Four fifths of 32 slots in use, requests at random, and lines whose delay varies by a tenth."""
    chance = random.Random(16)
    agent = SharingAgent(32)

    def delay() -> float:
        return 0.02 * (1 + 0.1 * chance.random())

    here = [agent.add(f"p{n}", delay) for n in range(16)]
    until_s, mean_s = 500.0, 2.0

    def arrive(process: Process, at_s: float) -> None:
        gap_s = chance.expovariate(0.8 * 32 / mean_s / 16)
        if at_s < until_s:
            agent.clock.at(at_s, lambda: process.request(chance.expovariate(1 / mean_s)))
            agent.clock.at(at_s, lambda: arrive(process, at_s + gap_s))

    for process in here:
        arrive(process, chance.random())
    agent.clock.run_until(until_s + 60.0)
    opened, refused = (sum(getattr(each, what) for each in here) for what in ("opened", "refused"))
    waits = sorted(wait for each in here for wait in each.begun)
    assert opened > 6_000
    assert refused / opened < 0.001
    assert agent.most_running <= 32
    assert waits[len(waits) // 2] < 0.1, "two round trips and a half, one of them to say that it waits"
