"""Replaces workers one by one: the next serves, and has all agents, before the one in its place leaves."""

from dataclasses import dataclass, field

from gateway.runtime.workers.worker_process import WorkerProcess


@dataclass(slots=True)
class RollingRestart:
    """How far it is. Nothing is under way while ``pending`` is empty."""

    pending: list[int] = field(default_factory=list)
    """Places that are to get a new worker; the first is being worked at."""
    coming: WorkerProcess | None = None
    """Serves already or will soon."""
    leaving: WorkerProcess | None = None
    """Lets finish what runs there."""

    @property
    def under_way(self) -> bool:
        return bool(self.pending)

    @property
    def workers(self) -> list[WorkerProcess]:
        """Those beside the ones that serve in their places."""
        return [each for each in (self.coming, self.leaving) if each is not None]

    @property
    def next_place(self) -> int | None:
        """For which a worker is to be started now; None: for none."""
        if self.coming is not None or self.leaving is not None:
            return None
        return self.pending[0] if self.pending else None

    def ended(self, worker: WorkerProcess) -> bool:
        """One of these workers has ended. Whether all is well: the one that came must not."""
        if worker is self.leaving:
            self.leaving = None
            self.pending.pop(0)
            return True
        self.coming = None
        self.pending.clear()
        return False

    def swap(self, before: WorkerProcess | None) -> WorkerProcess:
        """The one that came takes its place, and the one ``before`` leaves, if there is one; the former."""
        came, self.coming, self.leaving = self.coming, None, before
        assert came is not None
        if before is None:
            self.pending.pop(0)
        return came
