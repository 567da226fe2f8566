"""What there is so far of a job's answer: the newest, while there is the job."""

import pytest

from gateway.domain.jobs import JobNote, JobRecord
from shared.protocol import limits
from shared.protocol.progress import Preview, Progress
from tests.gateway.storage.jobs.desk import KEPT_S, NOW_S, JobDesk

PICTURE = Preview("image/png", b"picture")
LARGEST = Preview("image/jpeg", bytes(range(256)) * (limits.PREVIEW_BYTES // 256))


def note(desk: JobDesk, job: JobRecord, preview: Preview | None) -> None:
    assert job.lease is not None
    assert desk.claims.note_progress([JobNote(job.id, job.lease, Progress(0.5, "", preview))])


def test_the_newest_is_kept_and_counted(desk: JobDesk, running: JobRecord) -> None:
    assert desk.jobs.preview(running.id) is None
    note(desk, running, PICTURE)
    note(desk, running, None)
    assert (desk.jobs.preview(running.id), desk.jobs.get(running.id).previews) == (PICTURE, 1)
    note(desk, running, LARGEST)
    assert (desk.jobs.preview(running.id), desk.jobs.get(running.id).previews) == (LARGEST, 2)


def test_it_is_forgotten_when_its_job_does_not_run_any_more(desk: JobDesk, running: JobRecord) -> None:
    note(desk, running, PICTURE)
    desk.claims.note_progress([], [running.id])
    assert desk.jobs.preview(running.id) is None


@pytest.mark.parametrize("by_time", [True, False])
def test_it_goes_with_its_job(desk: JobDesk, running: JobRecord, *, by_time: bool) -> None:
    note(desk, running, PICTURE)
    assert desk.publish(running)
    if by_time:
        assert len(desk.jobs.remove_kept(KEPT_S + NOW_S, 10)) == 1
    else:
        desk.jobs.remove(running.id, running.new.tenant)
    assert desk.jobs.preview(running.id) is None
