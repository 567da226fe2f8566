"""A group of any size is cancelled, and others change jobs meanwhile."""

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise

import pytest
from sqlalchemy import Connection

from gateway.domain.jobs import JobState
from gateway.storage.jobs import cancellation
from tests.gateway.storage.jobs.desk import KEPT_S, NOW_S, JobDesk


def test_a_group_is_cancelled_some_jobs_in_each_transaction(
    desk: JobDesk, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk.submit(6, group="g")
    desk.submit(1)
    desk.claim("a", 1)
    database, cancelled = desk.store.database, [0]
    write = database.write_concurrently

    @contextmanager
    def counted() -> Iterator[Connection]:
        with write() as connection:
            yield connection
        cancelled.append(desk.jobs.count().get(JobState.CANCELLED, 0))

    monkeypatch.setattr(database, "write_concurrently", counted)
    monkeypatch.setattr(cancellation, "AT_ONCE", 2)
    desk.jobs.cancel_group("g", NOW_S, KEPT_S)
    assert cancelled[-1] == 5
    assert max(after - before for before, after in pairwise(cancelled)) == 2
    assert desk.jobs.count() == {JobState.CANCELLED: 5, JobState.RUNNING: 1, JobState.QUEUED: 1}
    assert desk.claims.cancelling("a", 1) == {"job-1"}
