"""Whose turn it is: tiers, tenants' shares, deadlines, ageing."""

import itertools
from collections import Counter
from collections.abc import Hashable

from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.scheduling.queue.fair import (
    DEBT_WORK,
    IDLE_FLOWS,
    LAG_WORK,
    SLACK_WORK,
    QueuedRequest,
    TierQueue,
)
from gateway.scheduling.queue.order import AGED_EVERY, QueueOrder

REALTIME, STANDARD, BATCH = range(3)
AGEING_S = 20.0


class Room:
    """Turns of one model, with numbers given out and everybody told apart by them."""

    def __init__(self, slack: float = SLACK_WORK, **weights: float) -> None:
        self.turns = QueueOrder[QueuedRequest](weights, AGEING_S, 0.0, slack)
        self.numbers = itertools.count(1)
        self.waiting: dict[int, QueuedRequest] = {}
        self.limits: dict[Hashable, int] = {}

    def come(
        self, tenant: str, work: float = 100.0, rank: int = STANDARD, now: float = 0.0, **more: object
    ) -> QueuedRequest:
        fields: dict[str, object] = {"lane": "chat", "due_s": now + 60.0} | more
        turn = QueuedRequest(next(self.numbers), rank, tenant, work=work, **fields)  # type: ignore[arg-type]
        self.put(turn, now)
        return turn

    def put(self, turn: QueuedRequest, now: float = 0.0) -> None:
        self.turns.put(turn, now)
        self.waiting[turn.number] = turn
        self.limits[turn.lane] = 10**6

    def go(self, turn: QueuedRequest, now: float = 0.0) -> QueuedRequest:
        self.turns.depart(turn, now)
        del self.waiting[turn.number]
        return turn

    def next(self, now: float = 0.0, **limits: int) -> QueuedRequest:
        """Gives the next one a slot."""
        (first, *_) = self.turns.first(limits or self.limits, now)
        return self.go(first, now)

    def order(self, now: float = 0.0, **limits: int) -> list[int]:
        return [turn.number for turn in self.turns.first(limits or self.limits, now)]


# --- Shares ---


def test_tenants_take_turns_however_many_each_sends() -> None:
    room = Room()
    for _ in range(20):
        room.come("many", SLACK_WORK)
    few = room.come("few", SLACK_WORK)
    assert room.order().index(few.number) == 1


def test_a_tenant_with_long_prompts_pays_for_them() -> None:
    room = Room()
    for _ in range(60):
        room.come("long", 10 * SLACK_WORK)
        room.come("short", SLACK_WORK)
    served = Counter(room.next().tenant for _ in range(44))
    assert served == {"long": 4, "short": 40}


def test_weights_are_shares_of_work() -> None:
    room = Room(heavy=3.0, light=0.5)
    for _ in range(100):
        for tenant in ("heavy", "plain", "light"):
            room.come(tenant, SLACK_WORK)
    assert Counter(room.next().tenant for _ in range(90)) == {"heavy": 60, "plain": 20, "light": 10}


def test_who_comes_after_a_pause_has_saved_up_nothing() -> None:
    room = Room()
    for _ in range(50):
        room.come("busy", SLACK_WORK)
    for _ in range(30):
        room.next()
    for _ in range(20):
        room.come("back", SLACK_WORK)
    assert Counter(room.next().tenant for _ in range(20)) == {"busy": 10, "back": 10}


def test_who_could_not_be_served_for_long_catches_up_a_little_and_no_more() -> None:
    room = Room()
    for _ in range(200):
        room.come("blocked", SLACK_WORK, lane="images")
        room.come("busy", SLACK_WORK)
        room.come("busy", SLACK_WORK, lane="images")
    for _ in range(150):
        room.next(chat=1)
    lag = LAG_WORK / SLACK_WORK
    served = Counter(room.next(images=1).tenant for _ in range(60))
    assert lag <= served["blocked"] - served["busy"] <= lag + 2


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 2), st.floats(1, 2000), st.floats(0, 60))))
def test_who_waited_alone_is_charged_as_in_line(steps: list[tuple[str, int, float, float]]) -> None:
    lined_up, alone, now = Room(b=2.0), Room(b=2.0), 0.0
    for tenant, rank, work, wait_s in steps:
        lined_up.go(lined_up.come(tenant, work, rank, now), now + wait_s)
        turn = QueuedRequest(next(alone.numbers), rank, tenant, lane="chat", work=work, due_s=now + 60.0)
        alone.turns.depart_alone(turn, now, now + wait_s)
        assert turn.charged == work
        now += wait_s
    for room in (lined_up, alone):
        for tenant in "abcabc":
            room.come(tenant, now=now)
    assert alone.order(now) == lined_up.order(now)
    for tenant in "abcd":
        assert alone.turns.wait_s(1, tenant, 1.0, now) == lined_up.turns.wait_s(1, tenant, 1.0, now)


def test_what_was_charged_is_corrected_when_the_cost_is_known() -> None:
    room = Room()
    for _ in range(40):
        room.come("dear", SLACK_WORK)
        room.come("plain", SLACK_WORK)
    dear, plain = room.next(), room.next()
    assert (dear.tenant, plain.tenant) == ("dear", "plain")
    room.turns.settle(dear, 6 * SLACK_WORK, 0.0)
    assert Counter(room.next().tenant for _ in range(7)) == {"dear": 1, "plain": 6}
    room.turns.settle(dear, 2 * SLACK_WORK, 0.0)
    assert Counter(room.next().tenant for _ in range(6)) == {"dear": 5, "plain": 1}


def test_a_correction_keeps_nobody_out_for_ever() -> None:
    share = TierQueue[QueuedRequest]({}, 0.0)
    turns = [QueuedRequest(number, 0, "absurd", "chat", 1.0, 0.0) for number in range(2)]
    share.put(turns[0], 0.0)
    share.remove(turns[0])
    share.charge(turns[0], 0.0)
    share.settle(turns[0], 1e18, 0.0)
    share.put(turns[1], 0.0)
    share.arrange_lines()
    line = share.lanes["chat"].first()
    assert line is not None
    assert line.flow.virtual == DEBT_WORK


def test_the_earliest_deadline_is_first_within_the_slack() -> None:
    room = Room()
    late = room.come("a", 10.0, due_s=50.0)
    sooner = room.come("b", 10.0, due_s=40.0)
    soonest = room.come("a", 10.0, due_s=30.0)
    assert room.order() == [soonest.number, sooner.number, late.number]


def test_beyond_the_slack_the_share_counts_and_not_the_deadline() -> None:
    room = Room()
    room.come("a", 2 * SLACK_WORK)
    room.next()
    urgent = room.come("a", 10.0, due_s=1.0)
    room.come("b", 10.0)
    other = room.come("b", SLACK_WORK)
    assert room.order()[:2] != [urgent.number, other.number]
    assert room.order()[-1] == urgent.number


def test_tenants_of_whom_nobody_waits_are_forgotten() -> None:
    share = TierQueue[QueuedRequest]({}, 0.0)
    for number in range(3 * IDLE_FLOWS):
        turn = QueuedRequest(number, 0, f"t{number}", "chat", 1.0 + number, 0.0)
        share.put(turn, 0.0)
        share.remove(turn)
        share.charge(turn, 0.0)
    assert len(share._flows) <= IDLE_FLOWS


# --- Tiers ---


def test_tiers_go_before_shares_and_begun_answers_before_others_of_their_tier() -> None:
    room = Room()
    batch = room.come("a", rank=BATCH)
    for _ in range(5):
        room.go(room.come("b", 10 * SLACK_WORK))
    standard, other = room.come("b"), room.come("a")
    begun = room.come("b", begun=True)
    realtime = room.come("b", rank=REALTIME)
    expected = [realtime, begun, other, standard, batch]
    assert room.order() == [turn.number for turn in expected]


def test_an_answer_that_has_begun_is_not_paid_for_twice() -> None:
    room = Room()
    begun = room.come("a", 10 * SLACK_WORK, begun=True)
    room.go(begun)
    assert begun.charged == 0
    mine, theirs = room.come("a"), room.come("b")
    assert room.order() == [mine.number, theirs.number]


def test_a_tier_in_which_somebody_waits_for_long_gets_every_tenth_slot() -> None:
    room = Room()
    for _ in range(100):
        room.come("a", rank=REALTIME)
        room.come("a", rank=BATCH)
    assert [room.next(now=AGEING_S - 0.1).rank for _ in range(2)] == [REALTIME] * 2
    ranks = [room.next(now=AGEING_S + 0.001 * number).rank for number in range(40)]
    assert ranks[0] == BATCH
    assert [number for number, rank in enumerate(ranks) if rank == BATCH] == [0, 10, 20, 30]


def test_where_slots_come_seldom_a_tier_that_waits_gets_one_in_time() -> None:
    room = Room()
    for _ in range(20):
        room.come("a", rank=REALTIME)
        room.come("a", rank=BATCH)
    ranks = [room.next(now=number * AGEING_S / 2).rank for number in range(10)]
    assert ranks == [0, 0, 2, 0, 0, 2, 0, 0, 2, 0]
    for _ in range(20):
        room.come("a", rank=STANDARD)
    ranks = [room.next(now=(number + 1) * 10 * AGEING_S).rank for number in range(9)]
    assert Counter(ranks) == {REALTIME: 3, STANDARD: 3, BATCH: 3}


def test_both_lower_tiers_age() -> None:
    room = Room()
    for _ in range(50):
        for rank in (REALTIME, STANDARD, BATCH):
            room.come("a", rank=rank)
    counts = Counter(room.next(now=AGEING_S + 0.01 * number).rank for number in range(40))
    assert counts[STANDARD] == counts[BATCH] == 4


def test_a_lane_without_slots_holds_up_nobody() -> None:
    room = Room()
    room.come("a", lane="images")
    chat = room.come("a")
    assert room.order(chat=5) == [chat.number]


# --- At random ---

tenants = st.sampled_from("abc")
works = st.integers(1, 2000)
comings = st.tuples(
    tenants, works, st.integers(0, 2), st.sampled_from(["x", "y"]), st.integers(0, 9), st.booleans()
)


def reference(room: Room, left: dict[str, int], now: float) -> QueuedRequest | None:
    """Who is next, found by looking at everybody."""
    tiers = room.turns._tiers
    for rank in room.turns._order([0, 1, 2], [tier.ageing for tier in tiers], room.turns._given, now):
        share = tiers[rank].share
        mine = [turn for turn in room.waiting.values() if turn.rank == rank and left.get(str(turn.lane))]
        begun = [turn for turn in mine if turn.begun]
        if begun:
            return min(begun, key=lambda turn: turn.number)
        fronts: dict[tuple[str, Hashable], QueuedRequest] = {}
        for turn in sorted(mine, key=lambda turn: (turn.due_s, turn.number), reverse=True):
            fronts[turn.tenant, turn.lane] = turn
        if fronts:
            return min(fronts.values(), key=lambda turn: share.key(share._flows[turn.tenant].virtual, turn))
    return None


@settings(max_examples=60)
@given(
    st.lists(comings, max_size=25),
    st.integers(0, 30),
    st.integers(0, 12),
    st.integers(0, 12),
    st.integers(0, 9),
)
def test_a_look_at_many_turns_is_what_giving_them_one_by_one_comes_to(
    come: list[tuple[str, int, int, str, int, bool]], now: int, x: int, y: int, cancelled: int
) -> None:
    room = Room(a=2.0)
    for tenant, work, rank, lane, due, begun in come:
        room.come(tenant, float(work), rank, lane=lane, due_s=float(due), begun=begun)
    for number in list(room.waiting)[:cancelled:3]:
        room.turns.remove(room.waiting.pop(number))
    for _ in range(cancelled):
        if room.waiting:
            room.next(now=0.0)
    left = {"x": x, "y": y}
    seen = room.order(float(now), **left)
    assert room.order(float(now), **left) == seen, "looking changes nothing"
    given_out: list[int] = []
    while any(left.values()):
        expected = reference(room, left, float(now))
        if expected is None:
            break
        found = room.next(float(now), **left)
        assert found is expected
        left[str(found.lane)] -= 1
        given_out.append(found.number)
    assert given_out == seen


@settings(max_examples=60)
@given(
    st.lists(st.tuples(tenants, works), min_size=1, max_size=120),
    st.lists(st.floats(0.1, 10), min_size=3, max_size=3),
    st.sampled_from([1.0, SLACK_WORK]),
)
def test_service_of_backlogged_tenants_differs_by_one_request_and_the_slack_at_most(
    come: list[tuple[str, int]], weights: list[float], slack: float
) -> None:
    """For tenants that wait from the same moment on, for as long as they all wait."""
    room = Room(slack, **dict(zip("abc", weights, strict=True)))
    by_name = dict(zip("abc", weights, strict=True))
    for tenant, work in come:
        room.come(tenant, float(work))
    largest = {name: max((work for tenant, work in come if tenant == name), default=0) for name in "abc"}
    got = dict.fromkeys("abc", 0.0)
    backlog = Counter(tenant for tenant, _ in come)
    there = [name for name in "abc" if backlog[name]]
    while all(backlog[name] for name in there):
        turn = room.next()
        backlog[turn.tenant] -= 1
        got[turn.tenant] += turn.work / by_name[turn.tenant]
        for one, other in itertools.permutations(there, 2):
            assert got[one] - got[other] <= slack + largest[one] / by_name[one] + 1e-6


@settings(max_examples=60)
@given(
    st.lists(st.sampled_from([REALTIME, REALTIME, REALTIME, STANDARD]), max_size=200),
    st.integers(1, 5),
    st.floats(0.5, 50.0),
)
def test_nobody_starves_however_many_of_higher_tiers_come(
    ranks: list[int], batch: int, slot_s: float
) -> None:
    """One slot each ``slot_s``, and before each somebody of a higher tier comes."""
    room = Room()
    for _ in range(3):
        room.come("b", rank=STANDARD)
    lowest = [room.come("a", rank=BATCH) for _ in range(batch)]
    went: dict[int, float] = {}
    now, more = 0.0, iter(ranks)
    for _ in range(200):
        room.come("c", rank=next(more, REALTIME), now=now)
        went[room.next(now).number] = now
        if lowest[-1].number in went:
            break
        now += slot_s
    each_s = min((AGED_EVERY + 1) * slot_s, AGEING_S + 4 * slot_s)
    for k, turn in enumerate(lowest, 1):
        assert went[turn.number] <= AGEING_S + k * each_s + 1e-6
