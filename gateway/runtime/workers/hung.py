"""Finds workers that have hung, and ends them: first it has them write down what they were doing."""

import signal
from pathlib import Path

import structlog

from gateway.runtime.workers.channel import STACKS_SIGNAL
from gateway.runtime.workers.silence import LOOK_S, SilenceWatch
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

    def __init__(self, silence_s: float, now: float) -> None:
        """A worker that says nothing for ``silence_s`` has hung; 0: none ever has."""
        self._watch: SilenceWatch[WorkerProcess] = SilenceWatch(silence_s, now)
        self._kill_at_s: dict[WorkerProcess, float] = {}
        """Those that have hung, and are about to be killed."""

    def due_s(self, now: float) -> float | None:
        """When to look again; None: there is nobody to look at."""
        dues_s = [*self._kill_at_s.values(), *([now + LOOK_S] if self._watch.watches else [])]
        return min(dues_s, default=None)

    def pass_time(self, now: float) -> None:
        """Time has passed until ``now``; what workers said meanwhile is heard next."""
        self._watch.look(now)

    def heard(self, worker: WorkerProcess) -> None:
        """It gave a sign of life."""
        if worker not in self._kill_at_s and not worker.is_ending:
            self._watch.heard(worker)

    def forget(self, worker: WorkerProcess) -> None:
        """It has ended, or was told to. Idempotent."""
        self._watch.forget(worker)

    def ended(self, worker: WorkerProcess) -> None:
        """It has ended. Idempotent."""
        self._watch.forget(worker)
        self._kill_at_s.pop(worker, None)

    def accepts(self, worker: WorkerProcess) -> bool:
        """Whether it is likely to accept connections: it has not been silent for long."""
        return worker not in self._kill_at_s and not self._watch.is_late(worker)

    def look(self, now: float) -> None:
        """End those that have hung."""
        for worker in self._watch.hung():
            self._kill_at_s[worker] = now + STACKS_S
            _log.error(
                "worker_hangs",
                worker=worker.index,
                pid=worker.pid,
                silent_s=round(self._watch.silent_s(worker), 1),
                state=_state(worker.pid),
            )
            self._watch.forget(worker)
            worker.signal(STACKS_SIGNAL)
        for worker, kill_at_s in list(self._kill_at_s.items()):
            if now >= kill_at_s:
                self._kill_at_s[worker] = float("inf")  # once; what cannot be killed is waited for
                stacks = worker.stacks() or None
                _log.error("worker_killed", worker=worker.index, pid=worker.pid, stacks=stacks)
                worker.signal(signal.SIGKILL)


def _state(pid: int) -> str | None:
    """What the kernel says of a process; None where that cannot be told."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    return _STATES.get(stat.rpartition(")")[2].strip()[:1])
