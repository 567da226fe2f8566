"""How videos look to clients."""

from dataclasses import replace

import pytest
from openai.types import Video

from gateway.api.jobs.video_bodies import AskedVideo
from gateway.api.jobs.video_forms import VIDEO_ID, has_content, new_video_id, video_object
from gateway.domain.jobs import JobOutcome, JobRecord, JobState, NewJob, ObjectSlice

FILM = (("content-type", "video/mp4"),)
JOB = JobRecord(
    1,
    NewJob("video_1", "t", "k", "sora", "/v1/videos", ObjectSlice("b")),
    JobState.QUEUED,
    1000.7,
    progress=None,
)


def ended(outcome: JobOutcome) -> JobRecord:
    return replace(JOB, state=outcome.state, outcome=outcome, finished_s=1500.2, kept_until_s=9000.9)


def test_a_video_that_waits() -> None:
    shown = video_object(JOB, AskedVideo("rain", "8", "1280x720"))
    video = Video.model_validate(shown)
    assert (video.id, video.object, video.status, video.progress) == ("video_1", "video", "queued", 0)
    assert (video.prompt, video.seconds, video.size, video.model) == ("rain", "8", "1280x720", "sora")
    assert (video.created_at, video.completed_at, video.expires_at, video.error) == (1000, None, None, None)


@pytest.mark.parametrize(("progress", "shown"), [(None, 0), (0.0, 0), (0.427, 42), (1.0, 99)])
def test_one_that_runs_says_how_far_it_is(progress: float | None, shown: int) -> None:
    video = video_object(replace(JOB, state=JobState.RUNNING, progress=progress), AskedVideo())
    assert (video["status"], video["progress"]) == ("in_progress", shown)


def test_one_that_is_there_says_what_its_engine_made() -> None:
    facts = '{"seconds":"5","size":"832x480"}'
    headers = (*FILM, ("x-trunkline-facts", facts))
    job = ended(JobOutcome(JobState.SUCCEEDED, 200, headers, "r", 10))
    video = video_object(job, AskedVideo("rain", "4", "1280x720"))
    assert (video["status"], video["progress"]) == ("completed", 100)
    assert (video["seconds"], video["size"]) == ("5", "832x480")
    assert (video["completed_at"], video["expires_at"]) == (1500, 9000)
    assert has_content(job)


@pytest.mark.parametrize(
    ("outcome", "code"),
    [
        (JobOutcome(JobState.CANCELLED), "cancelled"),
        (
            JobOutcome(JobState.EXPIRED, error={"code": "deadline_exceeded", "message": "late"}),
            "deadline_exceeded",
        ),
        (JobOutcome(JobState.FAILED, 400, error={"code": "bad", "message": "no"}), "bad"),
        (JobOutcome(JobState.FAILED, 500), "video_failed"),
        (JobOutcome(JobState.SUCCEEDED, 200, (("content-type", "application/json"),), "r", 10), "no_video"),
    ],
)
def test_whatever_came_to_no_video_has_failed(outcome: JobOutcome, code: str) -> None:
    job = ended(outcome)
    video = Video.model_validate(video_object(job, AskedVideo()))
    assert video.error is not None
    assert (video.status, video.error.code, video.completed_at) == ("failed", code, None)
    assert video.error.message
    assert not has_content(job)


def test_ids_are_new_and_say_what_they_are_of() -> None:
    assert new_video_id().startswith(VIDEO_ID)
    assert new_video_id() != new_video_id()
