"""What is told at once to whoever runs jobs in this process; others find it in the store when they look."""

from typing import Protocol


class RunsHere(Protocol):
    """:class:`gateway.jobs.runner.JobRunner`, to those who make and cancel jobs."""

    def wake(self) -> None:
        """There are new jobs."""
        ...

    def cancel(self, job_id: str) -> None:
        """The store has noted that the job is to end."""
        ...

    def cancel_group(self, group: str) -> None:
        """The same of all jobs of a group."""
        ...


class NothingRunsHere:
    """Of a process that runs no jobs."""

    def wake(self) -> None:
        pass

    def cancel(self, job_id: str) -> None:
        pass

    def cancel_group(self, group: str) -> None:
        pass
