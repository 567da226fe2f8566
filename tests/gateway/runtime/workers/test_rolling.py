"""How far a rolling restart is."""

from typing import cast

import pytest

from gateway.runtime.workers.rolling import RollingRestart
from gateway.runtime.workers.worker_process import WorkerProcess


def worker() -> WorkerProcess:
    return cast(WorkerProcess, object())


def test_one_place_after_the_other_gets_a_worker_and_loses_one() -> None:
    rolling = RollingRestart([0, 1])
    for place in (0, 1):
        assert rolling.next_place == place
        before, rolling.coming = worker(), worker()
        came = rolling.coming
        assert rolling.next_place is None
        assert rolling.swap(before) is came
        assert rolling.workers == [before]
        assert rolling.next_place is None, "not before the former one has ended"
        assert rolling.ended(before)
    assert not rolling.under_way
    assert rolling.next_place is None


def test_a_place_whose_worker_has_ended_meanwhile_is_done_with_the_one_that_came() -> None:
    rolling = RollingRestart([0], worker())
    rolling.swap(None)
    assert (rolling.under_way, rolling.workers) == (False, [])


@pytest.mark.parametrize("pending", [[0, 1], [1]])
def test_when_one_that_came_ends_all_is_over(pending: list[int]) -> None:
    rolling = RollingRestart(pending, worker())
    assert not rolling.ended(rolling.workers[0])
    assert (rolling.under_way, rolling.workers, rolling.next_place) == (False, [], None)
