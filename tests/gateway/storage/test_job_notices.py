"""What is told of jobs is read again as it was said, and passed on to whoever listens."""

import pytest

from gateway.storage.job_notices import JobEvent, JobNotice, JobNoticeBoard


@pytest.mark.parametrize(
    "notice",
    [
        JobNotice(JobEvent.QUEUED),
        JobNotice(JobEvent.CANCELLED, "job-1"),
        JobNotice(JobEvent.GROUP_CANCELLED, "batch_1 and more"),
    ],
)
def test_a_notice_is_read_as_it_was_said(notice: JobNotice) -> None:
    assert JobNotice.read(notice.text) == notice


def test_what_a_later_version_tells_is_passed_over() -> None:
    board, heard = JobNoticeBoard(), list[JobNotice]()
    board.post("queued ")
    board.listen(heard.append)
    board.post("paused job-1")
    board.post("")
    board.post("cancelled job-1")
    assert heard == [JobNotice(JobEvent.CANCELLED, "job-1")]
    board.listen(None)
    board.post("queued ")
    assert len(heard) == 1
