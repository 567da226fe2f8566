"""Nobody has all of what is bounded."""

from hypothesis import given
from hypothesis import strategies as st

from gateway.dispatch.response_buffers.fair_share import FairShareCounter
from tests.gateway.dispatch.response_buffers.behaviour.workers import used_by_key

TOTAL = 1 << 20


def fill(tally: FairShareCounter, key: str, tenant: str) -> int:
    """Take all that answers to ``key`` may have, one after the other; how much that is."""
    taken = 0
    while (room_bytes := tally.room_bytes(key, tenant, 0)) > 0:
        tally.count(key, tenant, room_bytes)
        taken += room_bytes
    return taken


def test_alone_a_tenant_has_half_and_a_key_a_quarter() -> None:
    tally = FairShareCounter(TOTAL)
    assert tally.room_bytes("k", "t", 0) == TOTAL // 8
    fill(tally, "k", "t")
    assert used_by_key(tally, "k") > TOTAL // 4 - 4
    for number in range(40):
        fill(tally, f"k{number}", "t")
    assert TOTAL // 2 - 100 < tally.used_bytes <= TOTAL // 2


def test_five_tenants_that_hold_all_they_may_leave_room_for_a_sixth() -> None:
    tally = FairShareCounter(TOTAL)
    for tenant in range(5):
        for key in range(40):
            fill(tally, f"{tenant}/{key}", str(tenant))
    assert tally.room_bytes("k", "another", 0) >= TOTAL // 512
    assert tally.used_bytes < TOTAL


def test_keys_of_a_tenant_that_hold_all_they_may_leave_room_for_another() -> None:
    tally = FairShareCounter(TOTAL)
    for key in range(5):
        fill(tally, str(key), "t")
    assert tally.room_bytes("another", "t", 0) >= TOTAL // 512


def test_one_answer_has_half_of_what_its_key_has_free() -> None:
    tally = FairShareCounter(TOTAL)
    assert tally.room_bytes("k", "t", 0) == TOTAL // 8
    tally.count("k", "t", TOTAL // 8)
    assert tally.room_bytes("k", "t", TOTAL // 8) == 0
    assert tally.room_bytes("k", "t", 0) == TOTAL // 16


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3), st.integers(-TOTAL, TOTAL)), max_size=60))
def test_no_more_is_held_than_there_is(steps: list[tuple[int, int, int]]) -> None:
    tally = FairShareCounter(TOTAL)
    held: dict[tuple[str, str], int] = {}
    for key_number, tenant_number, size_bytes in steps:
        key, tenant = f"{tenant_number}/{key_number}", str(tenant_number)
        own = held.get((key, tenant), 0)
        size_bytes = max(-own, min(size_bytes, tally.room_bytes(key, tenant, 0)))
        tally.count(key, tenant, size_bytes)
        held[key, tenant] = own + size_bytes
        assert 0 <= tally.used_bytes == sum(held.values()) <= TOTAL
    for (key, tenant), own in held.items():
        tally.count(key, tenant, -own)
    assert (tally.used_bytes, tally._by_key, tally._by_tenant) == (0, {}, {})
