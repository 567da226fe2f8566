"""Collections look at new objects only, seldom while requests run, and memory stays bounded all the same."""

import gc
import weakref
from collections.abc import Iterator
from typing import Any

import pytest

from gateway.runtime import garbage
from gateway.runtime.garbage import (
    APART_S,
    FORCED_FACTOR,
    GROWN_BYTES,
    SHORT_BYTES,
    CollectionPolicy,
    GarbageCollector,
    resident_bytes,
    young_collections_only,
)

QUIET: dict[str, Any] = {"requests": 0, "busy_share": 0.01, "memory_short": False}
BUSY_AND_SHORT: dict[str, Any] = {"requests": 3, "busy_share": 0.9, "memory_short": True}

STEP = 100
"""Objects before the youngest generation is collected, in these tests."""


class Knot:
    """It refers to itself."""

    def __init__(self) -> None:
        self.me = self


@pytest.fixture
def policy() -> CollectionPolicy:
    return CollectionPolicy(0.0, 0)


def test_a_quiet_moment_is_used_when_the_process_has_doubled(policy: CollectionPolicy) -> None:
    assert policy.is_due(0.0, GROWN_BYTES, **QUIET)
    assert not policy.is_due(0.0, GROWN_BYTES - 1, **QUIET)
    policy.collected(0.0, 3 * GROWN_BYTES)
    assert not policy.is_due(0.0, 6 * GROWN_BYTES - 1, **QUIET)
    assert policy.is_due(0.0, 6 * GROWN_BYTES, **QUIET)


@pytest.mark.parametrize("change", [{"requests": 1}, {"busy_share": 0.5}])
def test_while_somebody_waits_for_the_loop_there_is_time_until_it_has_grown_more(
    policy: CollectionPolicy, change: dict[str, Any]
) -> None:
    waited_for = {**QUIET, **change}
    assert not policy.is_due(0.0, GROWN_BYTES, **waited_for)
    assert not policy.is_due(0.0, FORCED_FACTOR * GROWN_BYTES - 1, **waited_for)
    assert policy.is_due(0.0, FORCED_FACTOR * GROWN_BYTES, **waited_for)


def test_a_process_that_has_not_grown_collects_nothing(policy: CollectionPolicy) -> None:
    policy.collected(0.0, 10 * GROWN_BYTES)
    for memory_short in (False, True):
        reading = {**QUIET, "memory_short": memory_short}
        assert not policy.is_due(APART_S, 10 * GROWN_BYTES - 4096, **reading)


def test_short_memory_collects_at_once_and_not_again_and_again(policy: CollectionPolicy) -> None:
    assert policy.is_due(0.0, SHORT_BYTES, **BUSY_AND_SHORT)
    policy.collected(0.0, 0)
    assert not policy.is_due(APART_S - 1, SHORT_BYTES, **BUSY_AND_SHORT)
    assert policy.is_due(APART_S, SHORT_BYTES, **BUSY_AND_SHORT)


def test_a_process_knows_its_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    assert resident_bytes() > 10 * 1024 * 1024
    monkeypatch.setattr("pathlib.Path.read_text", lambda *_: "")
    before = resident_bytes()
    gc.collect(0)
    assert resident_bytes() > before


@pytest.fixture
def young(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Small generations, small bounds, and nothing in them that others have left."""
    monkeypatch.setattr(garbage, "THRESHOLDS", (STEP, *garbage.THRESHOLDS[1:]))
    monkeypatch.setattr(garbage, "GROWN_BYTES", 20_000 * 200)
    thresholds = gc.get_threshold()
    gc.collect()
    gc.freeze()  # and it stays so: all that the tests have imported would be looked at again and again
    with young_collections_only():
        yield
    assert gc.get_threshold() == thresholds


def old_bytes() -> int:
    """What this process would have grown to: no memory is given back to the system in a test."""
    return 200 * len(gc.get_objects(generation=2))


@pytest.mark.usefixtures("young")
def test_the_interpreter_collects_young_objects_only() -> None:
    generations: list[int] = []
    looked_at: list[int] = []

    def note(phase: str, info: dict[str, int]) -> None:
        if phase == "start":
            generations.append(info["generation"])
            looked_at.append(sum(len(gc.get_objects(each)) for each in range(info["generation"] + 1)))

    gc.callbacks.append(note)
    try:
        alive: list[list[int]] = [[] for _ in range(200 * STEP)]
    finally:
        gc.callbacks.remove(note)
    assert alive
    assert set(generations) == {0}
    assert max(looked_at) < 2 * STEP


@pytest.mark.usefixtures("young")
def test_cycles_that_leak_are_collected_and_never_take_more_than_is_allowed() -> None:
    """Each is old before it is lost."""
    collector = GarbageCollector(lambda: 1, lambda: False, old_bytes)
    allowed = 3 * old_bytes() + FORCED_FACTOR * garbage.GROWN_BYTES
    most, collections, lost = 0, 0, 0
    while lost * 200 < 3 * allowed:
        knots = [Knot() for _ in range(100 * STEP)]
        last = weakref.ref(knots[-1])
        gc.collect(1)
        assert last() is not None
        lost += len(knots)
        knots.clear()
        gc.collect(1)
        assert last() is not None, "no young collection finds it"
        most = max(most, old_bytes())
        collections += collector.look()
    assert collections >= 2
    assert most <= allowed + 100 * STEP * 200 * 2


@pytest.mark.parametrize(("requests", "busy_s"), [(0, 0.0), (1, 0.0), (0, 1e9)])
def test_young_garbage_is_collected_at_a_quiet_moment(requests: int, busy_s: float) -> None:
    used = iter([0.0, busy_s])
    collector = GarbageCollector(lambda: requests, lambda: False, lambda: 0, used=lambda: next(used))
    gc.collect()
    with young_collections_only():
        knots = [Knot() for _ in range(garbage.QUIET_OBJECTS)]
        lost = weakref.ref(knots[0])
        knots.clear()
        assert not collector.look()
        assert (lost() is None) == (not requests and not busy_s)


def test_few_young_objects_are_left_alone_even_then() -> None:
    collector = GarbageCollector(lambda: 0, lambda: False, lambda: 0, used=lambda: 0.0)
    gc.collect()
    with young_collections_only():
        lost = weakref.ref(Knot())
        assert not collector.look()
        assert lost() is not None


@pytest.mark.usefixtures("young")
def test_a_complete_collection_is_made_at_a_quiet_moment() -> None:
    memory = 0
    collector = GarbageCollector(lambda: 0, lambda: False, lambda: memory, used=lambda: 0.0)
    knot = Knot()
    lost = weakref.ref(knot)
    gc.collect(1)
    del knot
    assert not collector.look(), "it is not worth it yet"
    assert lost() is not None
    memory = garbage.GROWN_BYTES
    assert collector.look()
    assert lost() is None
    assert not collector.look()
