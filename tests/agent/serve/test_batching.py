"""Which items are computed together, and when."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.serve.batching import BatchQueue


def queue_of(*lengths: float | None, max_wait_s: float = 1.0) -> BatchQueue[str]:
    """Items ``0``, ``1``, … that came a tenth of a second apart."""
    queue = BatchQueue[str](max_wait_s)
    for number, length in enumerate(lengths):
        queue.add(number, str(number), number / 10, length)
    return queue


def taken(queue: BatchQueue[str], limit: int) -> str:
    return "".join(item for _, item in queue.take(limit))


def test_a_batch_is_due_when_it_is_full_or_its_oldest_item_has_waited() -> None:
    assert queue_of().due_at(2, more_come=True) is None
    assert queue_of(None).due_at(2, more_come=True) == 1.0
    assert queue_of(None, None).due_at(2, more_come=True) == float("-inf")
    assert queue_of(None, None).is_full(2)
    assert not queue_of(None).is_full(2)


def test_a_batch_waits_no_longer_than_one_takes_while_no_other_item_is_known_to_come() -> None:
    queue = queue_of(None)
    assert queue.due_at(2, more_come=False) == 1.0  # nothing is known of how long one takes
    for _ in range(100):
        queue.observe(0.25)
    assert queue.due_at(2, more_come=False) == pytest.approx(0.25, abs=0.001)
    assert queue.due_at(2, more_come=True) == 1.0
    for _ in range(100):
        queue.observe(30.0)
    assert queue.due_at(2, more_come=False) == 1.0


def test_without_lengths_the_oldest_are_taken() -> None:
    queue = queue_of(None, None, None, None, None)
    assert taken(queue, 2) == "01"
    assert taken(queue, 9) == "234"
    assert taken(queue, 9) == ""
    assert queue.due_at(1, more_come=True) is None


def test_with_lengths_those_nearest_to_the_oldest_are_taken() -> None:
    queue = queue_of(50, 900, 52, 48, 901, None)
    assert taken(queue, 3) == "023"
    assert taken(queue, 2) == "14"
    assert taken(queue, 2) == "5"


def test_what_is_to_be_computed_alone_comes_first_and_alone() -> None:
    queue = queue_of(None, None)
    queue.add_alone(7, "x")
    assert queue.due_at(8, more_come=True) == float("-inf")
    assert taken(queue, 8) == "x"
    assert taken(queue, 8) == "01"


def test_what_is_put_back_comes_before_what_waits_and_at_once() -> None:
    queue = queue_of(None, None, None)
    batch = queue.take(2)
    for number, item in reversed(batch):
        queue.put_back(number, item)
    assert queue.due_at(8, more_come=True) == float("-inf")
    assert taken(queue, 8) == "012"


def test_what_is_removed_is_not_taken() -> None:
    queue = queue_of(None, None)
    queue.add_alone(5, "x")
    assert queue.remove(0)
    assert queue.remove(5)
    assert not queue.remove(0)
    assert len(queue) == 1
    assert taken(queue, 8) == "1"


@given(
    st.lists(st.one_of(st.none(), st.floats(0, 100)), max_size=30),
    st.integers(1, 8),
)
def test_every_item_is_taken_once_and_the_oldest_first(lengths: list[float | None], limit: int) -> None:
    queue = queue_of(*lengths)
    left = list(range(len(lengths)))
    while left:
        batch = [number for number, _ in queue.take(limit)]
        assert batch[0] == left[0]
        assert len(batch) == min(limit, len(left))
        left = [number for number in left if number not in batch]
    assert len(queue) == 0
