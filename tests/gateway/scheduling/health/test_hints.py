"""Each hint counts once, whatever becomes of the documents that carry it."""

from hypothesis import given
from hypothesis import strategies as st

from gateway.scheduling.health.hints import HINT_S, MOST_HINTS, GivenHints, HeardHints, SuspectHint


def keys(hints: list[SuspectHint]) -> list[str]:
    return [hint.key for hint in hints]


def test_hints_are_told_for_a_while_and_bounded() -> None:
    hints = GivenHints()
    hints.add("a", "status", 0.0)
    hints.add("b", "slow", 10.0)
    assert keys(hints.told(HINT_S - 0.1)) == ["a", "b"]
    assert keys(hints.told(HINT_S)) == ["b"]
    for number in range(3 * MOST_HINTS):
        hints.add(str(number), "status", 20.0)
    assert keys(hints.told(20.0)) == [str(number) for number in range(2 * MOST_HINTS, 3 * MOST_HINTS)]


def test_a_hint_is_new_once_and_again_when_it_happens_again() -> None:
    given_here, heard = GivenHints(), HeardHints()
    given_here.add("a", "status", 0.0)
    assert keys(heard.new("g1", 1, given_here.told(0.0))) == ["a"]
    assert heard.new("g1", 1, given_here.told(0.0)) == []
    given_here.add("a", "status", 1.0)
    assert keys(heard.new("g1", 1, given_here.told(1.0))) == ["a"]


def test_incarnations_and_processes_are_told_apart() -> None:
    heard = HeardHints()
    first = SuspectHint(1, "a", "status")
    assert heard.new("g1", 2, [first])
    assert heard.new("g2", 1, [first])
    assert heard.new("g1", 3, [first])
    assert not heard.new("g1", 2, [SuspectHint(9, "a", "status")])
    heard.forget_all_but(["g2"])
    assert not heard.new("g2", 1, [first])


@given(times=st.lists(st.integers(0, 9), max_size=20))
def test_no_hint_is_new_twice(times: list[int]) -> None:
    given_here, heard = GivenHints(), HeardHints()
    documents = []
    for number in range(10):
        given_here.add(str(number), "status", 0.0)
        documents.append(given_here.told(0.0))
    found = [hint.number for each in times for hint in heard.new("g1", 1, documents[each])]
    assert len(found) == len(set(found))
    assert set(found) == {number + 1 for number in range(max(times, default=-1) + 1)}
