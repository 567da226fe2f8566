"""A batch that cannot be done in time is refused at once, with what it would take."""

from collections.abc import Mapping

import pytest

from gateway.domain.batches import TRY_ANYWAY, WINDOW_KEY, BatchRecord, BatchState
from gateway.domain.jobs import NewJob, ObjectSlice
from gateway.jobs.batches.window import WindowCheck, span
from gateway.storage.jobs import JobBounds, JobClaim, Submission
from tests.gateway.jobs.batches.workshop import KnownSpeeds, Workshop, jsonl, request_line

HOUR_S = 3600.0


async def looked_at(
    workshop: Workshop,
    seconds: float | None,
    slots: int = 1,
    metadata: Mapping[str, str] | None = None,
    weights: Mapping[str, float] | None = None,
    tenant_slots: int | None = None,
) -> BatchRecord:
    """A batch of four requests of so many seconds each, after it was read."""
    workshop.outlook = KnownSpeeds(seconds, slots)
    workshop.window = WindowCheck(
        workshop.store.batches,
        workshop.outlook,
        lambda: workshop.now_s,
        weights=lambda: weights or {},
        tenant_slots=tenant_slots,
    )
    content = jsonl(*(request_line(f"c{number}") for number in range(4)))
    batch = await workshop.create(content, metadata=metadata)
    await workshop.worker().look()
    return await workshop.see(batch)


def put(workshop: Workshop, tenant: str, seconds: float, *, model: str = "m") -> None:
    """A job of another submission waits."""
    number = sum(workshop.store.jobs.count().values())
    job = NewJob(f"job-{number}", tenant, "k", model, "/p", ObjectSlice("o"), predicted_s=seconds)
    workshop.store.jobs.submit(Submission(tenant, (job,)), JobBounds(), workshop.now_s)


async def test_what_takes_too_long_is_refused_with_its_time(workshop: Workshop) -> None:
    batch = await looked_at(workshop, 8 * HOUR_S)
    assert (batch.state, set(batch.times), workshop.jobs(batch)) == (
        BatchState.FAILED,
        {BatchState.FAILED},
        (),
    )
    (error,) = batch.errors
    assert (error["code"], error["param"], error["line"]) == ("window_too_short", "completion_window", None)
    assert error["message"] == (
        "The batch would take about 32 hours on the slot that 'm' has now. Its window ends in 24 hours. Give "
        "it a longer completion_window, make it smaller, or have it begun all the same with "
        "trunkline_window=try in its metadata."
    )


@pytest.mark.parametrize(
    ("seconds", "slots", "state"),
    [
        (6 * HOUR_S, 1, BatchState.IN_PROGRESS),
        (6.01 * HOUR_S, 1, BatchState.FAILED),
        (8 * HOUR_S, 2, BatchState.IN_PROGRESS),
        (25 * HOUR_S, 100, BatchState.FAILED),  # a single request takes longer than there is time
        (8 * HOUR_S, 0, BatchState.IN_PROGRESS),  # nobody serves the model: fleets come and go
        (None, 1, BatchState.IN_PROGRESS),  # nobody knows how fast it is
    ],
)
async def test_a_batch_is_judged_by_the_slots_of_its_model(
    workshop: Workshop, seconds: float | None, slots: int, state: BatchState
) -> None:
    assert (await looked_at(workshop, seconds, slots)).state is state


async def test_who_asks_to_try_is_not_refused(workshop: Workshop) -> None:
    batch = await looked_at(workshop, 100 * HOUR_S, metadata={WINDOW_KEY: TRY_ANYWAY, "a": "b"})
    assert batch.state is BatchState.IN_PROGRESS


async def test_work_of_the_tenant_comes_first_and_that_of_others_by_weight(workshop: Workshop) -> None:
    put(workshop, "t", 5 * HOUR_S)
    put(workshop, "t", 99 * HOUR_S, model="another")
    assert (await looked_at(workshop, 5 * HOUR_S)).state is BatchState.FAILED
    assert (await looked_at(workshop, 4 * HOUR_S)).state is BatchState.IN_PROGRESS


async def test_work_of_others_counts_by_weight(workshop: Workshop) -> None:
    put(workshop, "other", 1000 * HOUR_S)
    assert (await looked_at(workshop, 4 * HOUR_S)).state is BatchState.FAILED
    begun = await looked_at(workshop, 4 * HOUR_S, weights={"t": 2.0})
    assert begun.state is BatchState.IN_PROGRESS


async def test_a_tenant_may_have_so_many_slots(workshop: Workshop) -> None:
    assert (await looked_at(workshop, 8 * HOUR_S, 4, tenant_slots=1)).state is BatchState.FAILED
    assert (await looked_at(workshop, 8 * HOUR_S, 4, tenant_slots=2)).state is BatchState.IN_PROGRESS


async def test_batches_before_it_count_with_all_their_lines(workshop: Workshop) -> None:
    workshop.bounds = JobBounds(queued=3)
    first = await looked_at(workshop, 3 * HOUR_S)  # of its four lines three are jobs, one is none yet
    assert (first.state, first.submitted) == (BatchState.IN_PROGRESS, 3)
    read = workshop.store.batches.open_work
    assert read("m", "none", workshop.now_s) == {"t": 12 * HOUR_S}
    assert read("m", first.id, workshop.now_s) == {}
    assert read("n", "none", workshop.now_s) == {}
    assert (await looked_at(workshop, 3.1 * HOUR_S)).state is BatchState.FAILED


async def test_of_a_job_that_runs_what_is_left_counts(workshop: Workshop) -> None:
    put(workshop, "t", 100.0)
    workshop.store.job_claims.claim(JobClaim("one", 1, "m", 1, 30.0), workshop.now_s)
    read = workshop.store.batches.open_work
    assert read("m", "none", workshop.now_s + 40.0) == {"t": 60.0}
    assert read("m", "none", workshop.now_s + 400.0) == {"t": 0.0}


@pytest.mark.parametrize(
    ("seconds", "said"),
    [
        (0.0, "1 minute"),
        (61.0, "2 minutes"),
        (7199.0, "120 minutes"),
        (7200.0, "2 hours"),
        (111_000.0, "31 hours"),
        (180_000.0, "3 days"),
    ],
)
def test_a_length_of_time_is_rounded_up(seconds: float, said: str) -> None:
    assert span(seconds) == said
