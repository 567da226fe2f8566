from gateway.api.jobs.forms import job_object
from gateway.domain.jobs import JobRecord, JobState, NewJob, ObjectSlice

NEW = NewJob("job-1", "t", "k", "m", "/p", ObjectSlice("o"), deadline_s=9.5, predicted_cost=0.1 + 0.2)


def test_what_is_not_known_is_null() -> None:
    shown = job_object(JobRecord(1, NEW, JobState.QUEUED, 1.7), {})
    assert (shown["created_at"], shown["expires_at"], shown["predicted_cost"]) == (1, 9, 0.3)
    for name in ("predicted_completion_at", "started_at", "progress", "result", "error", "webhook"):
        assert shown[name] is None
    assert shown["metadata"] == {}


def test_a_prediction_is_shown_with_its_job() -> None:
    job = JobRecord(1, NEW, JobState.RUNNING, 1.0, cancelling=True, progress=0.5)
    shown = job_object(job, {"job-1": 12.9, "job-2": 5.0})
    assert (shown["predicted_completion_at"], shown["cancelling"], shown["progress"]) == (12, True, 0.5)
