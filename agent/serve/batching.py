"""Which items are computed together, and when. Pure: time is an argument."""

import heapq
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Generic, TypeVar

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class _Waiting(Generic[T]):
    item: T
    since_s: float
    length: float | None


class BatchQueue(Generic[T]):
    """Items that wait to be computed, oldest first.

    A batch is due when as many wait as fit into one, or when the oldest has waited for ``max_wait_s``. While
    no other item is known to come, it waits no longer than a batch took of late: an item that comes later is
    computed right after this batch, and waits no longer for that than the oldest would wait for it here
    (Dooly, Goldman and Scott, "On-line analysis of the TCP acknowledgment delay problem", 2001).

    A batch holds the oldest item and, where items have lengths, those that are nearest to it in length, so
    that little is padded; else the next oldest. Items to be computed alone, because a batch with them failed,
    come first.

    How many items there may be is the caller's to bound (:class:`agent.serve.server.ModelServer`).
    """

    def __init__(self, max_wait_s: float) -> None:
        self._max_wait_s = max_wait_s
        self._batch_s = max_wait_s
        """How long a batch takes: the mean, in which the last one counts for an eighth."""
        self._waiting: dict[int, _Waiting[T]] = {}
        """By the item's number, in the order in which batches begin."""
        self._alone: dict[int, T] = {}
        self._has_lengths = False

    def __len__(self) -> int:
        return len(self._waiting) + len(self._alone)

    def add(self, number: int, item: T, now: float, length: float | None = None) -> None:
        self._waiting[number] = _Waiting(item, now, length)
        self._has_lengths = self._has_lengths or length is not None

    def add_alone(self, number: int, item: T) -> None:
        """The item is to be computed again, in a batch of its own."""
        self._alone[number] = item

    def put_back(self, number: int, item: T, length: float | None = None) -> None:
        """An item that was taken before all that wait, and has to wait once more. Of several the last one put
        back comes first. It is due at once."""
        self._waiting = {number: _Waiting(item, float("-inf"), length), **self._waiting}

    def remove(self, number: int) -> bool:
        """Whether the item waited."""
        waited = self._waiting.pop(number, None) is not None
        return (self._alone.pop(number, None) is not None) or waited

    def observe(self, took_s: float) -> None:
        """A batch was computed, in that time."""
        self._batch_s += (took_s - self._batch_s) / 8

    def due_at(self, limit: int, *, more_come: bool) -> float | None:
        """When the next batch of ``limit`` items at most is due, minus infinity for at once; None when
        nothing waits. ``more_come`` says that further items are known to come."""
        if self._alone or len(self._waiting) >= limit:
            return float("-inf")
        first = next(iter(self._waiting.values()), None)
        if first is None:
            return None
        return first.since_s + (self._max_wait_s if more_come else min(self._max_wait_s, self._batch_s))

    def take(self, limit: int) -> list[tuple[int, T]]:
        """The next batch, whether it is due or not; empty when nothing waits."""
        if self._alone:
            number = next(iter(self._alone))
            return [(number, self._alone.pop(number))]
        chosen = list(self._chosen(limit))
        return [(number, self._waiting.pop(number).item) for number in chosen]

    def is_full(self, limit: int) -> bool:
        """Whether a batch that is taken now can grow no further."""
        return bool(self._alone) or len(self._waiting) >= limit

    def _chosen(self, limit: int) -> Iterator[int]:
        numbers = iter(self._waiting)
        first = next(numbers, None)
        if first is None:
            return
        length = self._waiting[first].length
        if not self._has_lengths or length is None or len(self._waiting) <= limit:
            yield first
            for _, number in zip(range(limit - 1), numbers, strict=False):
                yield number
            return

        def distance(number: int) -> float:
            other = self._waiting[number].length
            return float("inf") if other is None else abs(other - length)

        yield first
        yield from heapq.nsmallest(limit - 1, numbers, key=distance)
