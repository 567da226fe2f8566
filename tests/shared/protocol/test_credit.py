"""Byte credit on its own."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.protocol import limits
from shared.protocol.credit import (
    AGENT_WINDOWS,
    GATEWAY_WINDOWS,
    ReceiveCredit,
    SendCredit,
    SessionReceiveCredit,
    WindowPool,
    own_limits,
)
from shared.protocol.errors import ErrorCode, FlowControlViolated
from shared.protocol.frames import TunnelRole
from shared.protocol.session import ProtocolSession
from tests.support.session_pair import SessionPair, request_head


def test_an_older_credit_changes_nothing() -> None:
    credit = SendCredit(100)
    assert credit.advance(200) == 100
    assert credit.advance(150) == 0
    assert credit.advance(200) == 0
    assert credit.available == 200


def test_credit_that_no_stream_can_have_is_refused() -> None:
    with pytest.raises(FlowControlViolated):
        SendCredit(0).advance(limits.CREDIT_MAX + 1)


def test_receiving_beyond_the_grant_is_refused() -> None:
    credit = ReceiveCredit(window=100, now=0.0)
    credit.receive(100)
    with pytest.raises(FlowControlViolated):
        credit.receive(1)


@given(st.lists(st.integers(1, 5000), max_size=200))
def test_what_may_be_held_never_exceeds_the_window(sizes: list[int]) -> None:
    pool = WindowPool(GATEWAY_WINDOWS)
    credit = ReceiveCredit(window=16384, now=0.0)
    for size_bytes in sizes:
        size_bytes = min(size_bytes, credit.granted - credit.received)
        credit.receive(size_bytes)
        credit.consume(size_bytes)
        credit.grant(pool, None, 0.0)
        assert credit.received <= credit.granted <= credit.consumed + credit.window
        assert credit.granted - credit.received > 0


@given(st.lists(st.integers(0, 10 * limits.MIB), max_size=300))
def test_the_pool_lends_only_what_it_has(wanted: list[int]) -> None:
    pool = WindowPool(GATEWAY_WINDOWS)
    whole = pool.free
    lent = [pool.borrow(size_bytes) for size_bytes in wanted]
    assert sum(lent) + pool.free == whole
    assert pool.free >= 0
    for size_bytes in lent:
        pool.give_back(size_bytes)
    assert pool.free == whole


def test_a_slow_stream_is_granted_more_at_a_time() -> None:
    credit, pool = ReceiveCredit(window=20480, now=0.0), WindowPool(GATEWAY_WINDOWS)
    steps = []
    for now in (1.0, 2.0, 2.2, 3.0):  # a round trip takes 10 ms
        size_bytes = credit.grant_at - credit.consumed
        credit.receive(size_bytes)
        credit.consume(size_bytes - 1)
        assert credit.grant(pool, 0.01, now) is None
        assert credit.step_bytes == 1
        credit.consume(1)
        assert credit.grant(pool, 0.01, now) == credit.consumed + 20480
        steps.append(credit.step_bytes)
    assert steps == [12288, 12288, 10240, 12288]
    credit.receive(12288)
    credit.consume(12288)
    credit.grant(pool, 0.1, 4.0)
    assert credit.step_bytes == 10240, "ten round trips are few"
    credit.receive(10240)
    credit.consume(10240)
    credit.grant(pool, 0.001, 4.2)
    assert credit.step_bytes == 10240, "a fifth of a second is short"
    assert credit.window == 20480


@given(
    st.integers(16384, 33_000),
    st.lists(st.tuples(st.integers(1, 16384), st.sampled_from([0.01, 0.3, 1.0])), min_size=1, max_size=100),
)
def test_credit_is_left_while_little_waits(window: int, taken: list[tuple[int, float]]) -> None:
    """However slow it is: a gateway takes an engine that is silent then for one that has failed."""
    credit, pool, now = ReceiveCredit(window, 0.0), WindowPool(GATEWAY_WINDOWS), 0.0
    for size_bytes, pause_s in taken:
        now += pause_s
        credit.receive(credit.granted - credit.received)  # the sender has no credit now
        credit.consume(min(size_bytes, credit.received - credit.consumed))
        if credit.grant(pool, 0.01, now) is None:
            assert credit.received - credit.consumed > GATEWAY_WINDOWS.left_bytes


def test_many_streams_share_what_there_is() -> None:
    pool, rest = WindowPool(GATEWAY_WINDOWS), GATEWAY_WINDOWS.initial - GATEWAY_WINDOWS.floor
    whole = pool.free
    lent = [pool.borrow_first(rest) for _ in range(1000)]
    assert sum(lent) + pool.free == whole
    for _ in range(3):  # the oldest end, and as many begin
        for number, size_bytes in enumerate(lent):
            pool.give_back(size_bytes)
            lent[number] = pool.borrow_first(rest)
    assert min(lent) > whole / 1000 / 2
    assert max(lent) < whole / 1000 * 2


@pytest.mark.parametrize("sessions", [4, 16, 64])
def test_streams_that_come_and_go_have_about_as_much_each(sessions: int) -> None:
    windows = GATEWAY_WINDOWS.divided(sessions)
    pair = SessionPair(windows)
    heads = []
    for count in range(4 * windows.streams):
        if count >= windows.streams:
            oldest = count - windows.streams + 1
            for session in (pair.gateway, pair.agent):
                session.reset(oldest, ErrorCode.CANCELLED)
                pair.settle()
        heads.append(request_head())
        pair.gateway.open_stream(heads[-1], pair.now)
        pair.settle()
    lent = [head.credit - windows.floor for head in heads]
    assert not any(0 < size_bytes < limits.CREDIT_STEP_BYTES for size_bytes in lent)
    lent = sorted(lent[-windows.streams :])
    shared = windows.shareable - windows.floor * windows.streams
    assert lent[-1] < 4 * shared / windows.streams
    assert lent[len(lent) // 10] > shared / windows.streams / 4, "nine of ten"


def test_the_first_stream_of_a_small_part_has_half_of_what_is_shared() -> None:
    windows = AGENT_WINDOWS.divided(64)
    free = WindowPool(windows).free
    assert windows.initial - windows.floor > free // 2, "else it has all that it begins with"
    session = ProtocolSession(TunnelRole.GATEWAY, own_limits(AGENT_WINDOWS), 0.0, windows)
    granted = []
    for _ in range(2):
        head = request_head()
        session.open_stream(head, 0.0)
        granted.append(head.credit - windows.floor)
    assert granted[0] == free // 2
    assert granted[1] <= free // 4


def test_windows_never_grow_beyond_the_maximum() -> None:
    pool = WindowPool(GATEWAY_WINDOWS)
    pool.free = 10**9
    credit = ReceiveCredit(limits.STREAM_WINDOW_BYTES, 0.0)
    for _ in range(20):
        size_bytes = credit.granted - credit.received
        credit.receive(size_bytes)
        credit.consume(size_bytes)
        credit.grant(pool, rtt_s=1.0, now=0.0)
    assert credit.window == limits.STREAM_WINDOW_MAX_BYTES


def test_session_credit_always_leaves_room_for_all_windows() -> None:
    credit = SessionReceiveCredit(GATEWAY_WINDOWS.session)
    for _ in range(1000):
        credit.receive(70_000)
        credit.consume(70_000)
        credit.grant()
        assert credit.granted - credit.received >= GATEWAY_WINDOWS.shareable


@given(st.integers(1, 32))
def test_divided_windows_hold_together_what_one_would(sessions: int) -> None:
    each = AGENT_WINDOWS.divided(sessions)
    assert each.session * sessions <= AGENT_WINDOWS.session
    assert 1 <= each.streams <= AGENT_WINDOWS.streams
    assert each.floor * each.streams <= each.shareable
    assert sessions > 1 or each is AGENT_WINDOWS
