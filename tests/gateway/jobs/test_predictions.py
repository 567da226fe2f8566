"""When jobs will be done: by progress, by prediction, by the queue before them; or nothing is said."""

from dataclasses import replace

import pytest

from gateway.domain.jobs import JobRecord, JobState, NewJob, ObjectSlice
from gateway.jobs.predictions import BatchWork, batch_takes_s, running_until_s, waiting_until_s
from gateway.storage.jobs import QueuedWork

NEW = NewJob("job-1", "t", "k", "m", "/p", ObjectSlice("o"), predicted_s=10.0)
RUNNING = JobRecord(1, NEW, JobState.RUNNING, 0.0, started_s=100.0)
WAITING = JobRecord(5, NEW, JobState.QUEUED, 0.0)


@pytest.mark.parametrize(
    ("progress", "predicted_s", "now_s", "until_s"),
    [
        (None, 10.0, 104.0, 110.0),
        (None, 10.0, 150.0, 150.0),
        (None, None, 104.0, None),
        (0.5, 10.0, 120.0, 140.0),
        (0.5, None, 120.0, 140.0),
        (0.001, 10.0, 104.0, 110.0),
        (1.0, 10.0, 120.0, 120.0),
        (7.0, 10.0, 120.0, 120.0),
        (None, 10.0, 90.0, 110.0),
    ],
)
def test_one_that_runs_is_judged_by_its_progress_first(
    progress: float | None, predicted_s: float | None, now_s: float, until_s: float | None
) -> None:
    job = replace(RUNNING, progress=progress, new=replace(NEW, predicted_s=predicted_s))
    assert running_until_s(job, now_s) == until_s


def test_of_others_nothing_is_said() -> None:
    assert running_until_s(WAITING, 1.0) is None
    assert running_until_s(replace(RUNNING, state=JobState.SUCCEEDED), 1.0) is None


@pytest.mark.parametrize(
    ("work", "slots", "until_s"),
    [
        (QueuedWork({5: 0.0}, 0, 0.0), 1, 1010.0),
        (QueuedWork({5: 40.0}, 0, 0.0), 1, 1050.0),
        (QueuedWork({5: 40.0}, 4, 20.0), 4, 1025.0),
        (QueuedWork({5: 0.0}, 3, 60.0), 4, 1010.0),
        (QueuedWork({5: 0.0}, 4, 40.0), 4, 1020.0),
    ],
)
def test_one_that_waits_comes_after_what_is_before_it(work: QueuedWork, slots: int, until_s: float) -> None:
    assert waiting_until_s([WAITING], work, slots, 1000.0) == {"job-1": until_s}


def test_it_does_not_begin_before_its_time() -> None:
    job = replace(WAITING, new=replace(NEW, not_before_s=2000.0))
    assert waiting_until_s([job], QueuedWork({5: 0.0}, 0, 0.0), 1, 1000.0) == {"job-1": 2010.0}


def test_one_that_does_not_wait_any_more_is_left_out() -> None:
    assert waiting_until_s([WAITING], QueuedWork({}, 0, 0.0), 1, 1000.0) == {}


def test_the_work_of_a_batch_is_summed() -> None:
    work = BatchWork().with_request(3.0).with_request(None).with_request(2.0)
    assert work == BatchWork(5.0, 3.0)


@pytest.mark.parametrize(
    ("open_s", "weights", "slots", "tenant_slots", "takes_s"),
    [
        ({}, {}, 1, None, 100.0),
        ({}, {}, 4, None, 25.0),
        ({}, {}, 50, None, 20.0),
        ({}, {}, 4, 2, 50.0),
        ({"t": 60.0}, {}, 4, None, 40.0),
        ({"o": 60.0}, {}, 4, None, 40.0),
        ({"o": 9999.0}, {}, 4, None, 50.0),
        ({"o": 9999.0, "p": 40.0}, {}, 4, None, 60.0),
        ({"o": 9999.0}, {"o": 3.0}, 4, None, 100.0),
        ({"o": 9999.0}, {"t": 2.0}, 4, None, 37.5),
    ],
)
def test_a_batch_takes_what_it_and_the_work_beside_it_take(
    open_s: dict[str, float],
    weights: dict[str, float],
    slots: int,
    tenant_slots: int | None,
    takes_s: float,
) -> None:
    assert batch_takes_s(BatchWork(100.0, 20.0), "t", open_s, weights, slots, tenant_slots) == takes_s
