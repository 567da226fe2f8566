"""Finds workers that have hung, while they serve or before, and ends them: first it has them write down what
they were doing.
"""

import signal
from pathlib import Path
from typing import Any

import structlog

from gateway.runtime.workers.channel import STACKS_SIGNAL
from gateway.runtime.workers.silence import FIRST_START_TIMES, LOOK_S, START_S, SilenceWatch
from gateway.runtime.workers.worker_process import WorkerProcess

STACKS_S = 1.0
"""For a worker that has hung, to write down where its threads are. Then it is killed."""

_STATES = {
    "T": "stopped",
    "t": "traced",
    "D": "waiting for a disk or the like",
    "R": "running",
    "S": "waiting",
}
"""Of /proc/PID/stat (proc(5))."""

_log = structlog.get_logger("gateway")


class HungWorkers:
    """To be told what workers say, and asked at least as often as :meth:`due_s` says. ``now`` is in seconds
    of a clock that does not go back."""

    def __init__(self, silence_s: float, now: float, start_s: float = START_S) -> None:
        """A worker that serves and says nothing for ``silence_s`` has hung; 0: none ever has. One that does
        not serve ``start_s`` after its start has hung, too; 0: it may take as long as it will."""
        self._watch: SilenceWatch[WorkerProcess] = SilenceWatch(silence_s, now)
        self._starting: SilenceWatch[WorkerProcess] = SilenceWatch(start_s, now)
        self._first: SilenceWatch[WorkerProcess] = SilenceWatch(FIRST_START_TIMES * start_s, now)
        """The same for the one that is started before any has served."""
        self._kill_at_s: dict[WorkerProcess, float] = {}
        """Those that have hung, and are about to be killed."""

    def due_s(self, now: float) -> float | None:
        """When to look again; None: there is nobody to look at."""
        watches = any(each.watches for each in self._watches)
        return min([*self._kill_at_s.values(), *([now + LOOK_S] if watches else [])], default=None)

    def pass_time(self, now: float) -> None:
        """Time has passed until ``now``; what workers said meanwhile is heard next."""
        for each in self._watches:
            each.look(now)

    def started(self, worker: WorkerProcess, *, first: bool) -> None:
        """It is being started; ``first``: none has ever served."""
        (self._first if first else self._starting).heard(worker)

    def serves(self, worker: WorkerProcess) -> None:
        """It has come to serve in time. Idempotent."""
        self._starting.forget(worker)
        self._first.forget(worker)

    def heard(self, worker: WorkerProcess) -> None:
        """It gave a sign of life."""
        if worker not in self._kill_at_s and not worker.is_ending:
            self._watch.heard(worker)

    def forget(self, worker: WorkerProcess) -> None:
        """It has ended, or was told to. Idempotent."""
        for each in self._watches:
            each.forget(worker)

    def ended(self, worker: WorkerProcess) -> None:
        """It has ended. Idempotent."""
        self.forget(worker)
        self._kill_at_s.pop(worker, None)

    def accepts(self, worker: WorkerProcess) -> bool:
        """Whether it is likely to accept connections: it has not been silent for long."""
        return worker not in self._kill_at_s and not self._watch.is_late(worker)

    def look(self, now: float) -> None:
        """End those that have hung."""
        for worker in self._watch.hung():
            silent_s = round(self._watch.silent_s(worker), 1)
            _log.error("worker_hangs", silent_s=silent_s, **self._condemned(worker, now))
        for starting in (self._starting, self._first):
            for worker in starting.hung():
                after_s = round(starting.silent_s(worker), 1)
                _log.error("worker_does_not_start", after_s=after_s, **self._condemned(worker, now))
        for worker, kill_at_s in list(self._kill_at_s.items()):
            if now >= kill_at_s:
                self._kill_at_s[worker] = float("inf")  # once; what cannot be killed is waited for
                stacks = worker.stacks() or None
                _log.error("worker_killed", worker=worker.index, pid=worker.pid, stacks=stacks)
                worker.signal(signal.SIGKILL)

    @property
    def _watches(self) -> tuple[SilenceWatch[WorkerProcess], ...]:
        return self._watch, self._starting, self._first

    def _condemned(self, worker: WorkerProcess, now: float) -> dict[str, Any]:
        """What is said of a worker that has hung. It writes down where its threads are, and is killed a
        moment later."""
        state = _state(worker.pid)
        self._kill_at_s[worker] = now + STACKS_S
        self.forget(worker)
        worker.signal(STACKS_SIGNAL)
        return {"worker": worker.index, "pid": worker.pid, "state": state}


def _state(pid: int) -> str | None:
    """What the kernel says of a process; None where that cannot be told."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    return _STATES.get(stat.rpartition(")")[2].strip()[:1])
