"""Jobs to submit, and a clock that stands still unless it is moved."""

from collections.abc import Iterator

import pytest

from gateway.domain.jobs import JobRecord
from gateway.storage import Store
from gateway.storage.database import Database
from tests.gateway.storage.jobs.desk import JobDesk


class StandingClock:
    """In place of the clock that the processes of a store share."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self, _database: Database, _connection: object) -> float:
        return self.now


@pytest.fixture
def clock(any_store: Store, monkeypatch: pytest.MonkeyPatch) -> StandingClock:
    standing = StandingClock()
    monkeypatch.setattr(type(any_store.database), "interval_s", lambda *given: standing(*given))
    return standing


@pytest.fixture
def desk(any_store: Store, clock: StandingClock) -> Iterator[JobDesk]:
    """On each kind of database; afterwards the counts of queues must be those of the jobs."""
    made = JobDesk(any_store, clock)
    yield made
    made.check_counts()


@pytest.fixture
def running(desk: JobDesk) -> JobRecord:
    """A job that process a runs."""
    desk.submit(1)
    (job,) = desk.claim("a", 1)
    return job
