"""Starts workers, starts those again that end or hang, and passes on signals. Serves nobody.

SIGTERM and SIGINT let all drain, and a second one ends them at once; SIGHUP has all read the settings again;
SIGUSR2 replaces them one by one.
"""

import contextlib
import os
import selectors
import signal
import time
from collections.abc import Callable, Iterator, Sequence

import structlog

from gateway.runtime.workers.channel import COVER, END, LEAVE, PEERS, RELEASE, STOP
from gateway.runtime.workers.covering import Covering
from gateway.runtime.workers.hung import HungWorkers
from gateway.runtime.workers.restarts import RestartSchedule
from gateway.runtime.workers.role import alternate_name
from gateway.runtime.workers.rolling import RollingRestart
from gateway.runtime.workers.silence import SILENCE_S, START_S
from gateway.runtime.workers.worker_process import WorkerProcess

PATIENCE_S = 30.0
"""Workers end by themselves ``drain_s`` after they were asked to, and a moment; then they are killed."""

COMING_S = 120.0
"""For a worker that is to replace one, until it has all agents."""

FORCED_S = 15.0
"""The same after a second signal."""

_STOPS = (signal.SIGTERM, signal.SIGINT)
_OTHERS = (signal.SIGHUP, signal.SIGUSR2)

_log = structlog.get_logger("gateway")


class Supervisor:
    """Owns the workers. To be used on the main thread, once."""

    def __init__(
        self,
        start: Callable[[int, list[str], bool], WorkerProcess],
        names: Sequence[str],
        drain_s: float,
        clock: Callable[[], float] = time.monotonic,
        *,
        silence_s: float = SILENCE_S,
        start_s: float = START_S,
        left: Callable[[int], None] = lambda index: None,
        listening: Callable[[int], Sequence[int]] = lambda index: (),
    ) -> None:
        """``start`` starts the worker of a place; it gets the names of all, that of the place among them, and
        whether it replaces one that serves. It may raise OSError. One that serves and says nothing for
        ``silence_s`` is killed, and started again, and so is one that does not come to serve within
        ``start_s``; 0: it is not. ``left`` is told each that has ended when none is to follow it.
        ``listening`` gives the descriptors of the sockets that a place listens on."""
        self._start = start
        self._drain_s = drain_s
        self._clock = clock
        self._left = left
        self._listening = listening
        self._covering: Covering[WorkerProcess] = Covering(len(names))
        self._hung = HungWorkers(silence_s, clock(), start_s)
        self._schedule = RestartSchedule(len(names), clock())
        self._names = list(names)
        self._rolling = RollingRestart()
        self._workers: dict[int, WorkerProcess] = {}
        self._selector = selectors.DefaultSelector()
        self._stop_signals = 0
        self._kill_at_s: float | None = None
        self._killed = False

    @property
    def began(self) -> bool:
        """Whether any worker ever served."""
        return self._schedule.began

    def run(self) -> int:
        """Runs until a signal ends it, or no worker can be started. The exit status."""
        with self._selector, _signals() as signals, contextlib.ExitStack() as ending:
            ending.callback(self._end)
            self._selector.register(signals, selectors.EVENT_READ)
            while not self._over():
                ready = self._selector.select(self._patience_s())
                self._hung.pass_time(self._clock())
                for key, _ in ready:
                    if isinstance(key.data, WorkerProcess):
                        self._hear(key.data)
                    else:
                        for number in _read(signals):
                            self._receive(number)
                self._look()
        return self._schedule.verdict or int(self._killed)

    def _over(self) -> bool:
        if self._schedule.verdict is not None:
            return True
        return bool(self._stop_signals) and not self._all

    @property
    def _all(self) -> list[WorkerProcess]:
        return [*self._workers.values(), *self._rolling.workers]

    def _patience_s(self) -> float | None:
        now = self._clock()
        start_s = None if self._stop_signals else self._schedule.next_due_s()
        dues_s = (self._kill_at_s, start_s, self._hung.due_s(now))
        due_s = min((each for each in dues_s if each is not None), default=None)
        return None if due_s is None or due_s == float("inf") else max(0.0, due_s - now)

    def _look(self) -> None:
        """Find out who has ended, and start whoever is due."""
        now = self._clock()
        for worker in self._all:
            if (status := worker.status()) is not None:
                self._ended(worker, status, now)
        self._hung.look(now)
        if self._kill_at_s is not None and now >= self._kill_at_s:
            late = self._all if self._stop_signals else self._rolling.workers
            self._kill_at_s, self._killed = None, bool(self._stop_signals)
            _log.error("workers_killed", workers=len(late))
            for worker in late:
                worker.signal(signal.SIGKILL)
        if not self._stop_signals and self._schedule.verdict is None:
            for index in self._schedule.due(now):
                self._begin(index, now)
            if (place := self._rolling.next_place) is not None:
                self._replace(place, now)
            self._cover()

    def _cover(self) -> None:
        """Nobody waits for a worker that is being started or has hung while others could accept the
        connection."""
        cover, release = self._covering.update(
            {
                place: worker
                for place, worker in self._workers.items()
                if worker.is_ready and self._hung.accepts(worker)
            }
        )
        for worker, place in release:
            worker.tell(b"%b%d\n" % (RELEASE, place))
        for worker, place in cover:
            worker.tell(b"%b%d\n" % (COVER, place), self._listening(place))

    def _begin(self, index: int, now: float) -> None:
        self._schedule.started(index)
        try:
            worker = self._workers[index] = self._start(index, self._names, False)
        except OSError as error:
            wait_s = self._schedule.ended(index, 0, now)
            _log.error("worker_not_started", worker=index, error=str(error), again_in_s=wait_s)
            return
        self._hung.started(worker, first=not self._schedule.began)
        self._selector.register(worker.channel, selectors.EVENT_READ, worker)

    def _hear(self, worker: WorkerProcess) -> None:
        before, beats = (worker.is_ready, worker.is_settled), worker.beats
        if not worker.read():
            self._selector.unregister(worker.channel)  # its status comes in a moment
        if worker.beats > beats:
            self._hung.heard(worker)
        now = self._clock()
        if worker.is_ready and not before[0]:
            self._hung.serves(worker)
            if worker is not self._rolling.coming:
                self._schedule.ready(worker.index, now)
            self._name_all()
            _log.info("worker_serves", worker=worker.index, pid=worker.pid)
            if worker.reload_later:
                worker.signal(signal.SIGHUP)
        if worker.is_settled and not before[1] and worker is self._rolling.coming:
            self._swap(worker.index, now)

    # --- Rolling ---

    def _roll(self) -> None:
        """Replace all, unless that is under way or not all serve."""
        ready = [worker.is_ready for worker in self._workers.values()]
        if self._rolling.under_way or self._stop_signals or ready != [True] * len(self._names):
            _log.warning("workers_not_replaced", reason="not all of them serve, or they are being replaced")
            return
        self._rolling.pending = list(range(len(self._names)))

    def _replace(self, place: int, now: float) -> None:
        """Start a worker for a place where one serves."""
        names = list(self._names)
        names[place] = alternate_name(names[place])
        try:
            self._rolling.coming = self._start(place, names, True)
        except OSError as error:
            self._rolling.pending.clear()
            _log.error("workers_not_replaced", reason=str(error))
            return
        self._selector.register(self._rolling.coming.channel, selectors.EVENT_READ, self._rolling.coming)
        self._kill_at_s = now + COMING_S

    def _swap(self, place: int, now: float) -> None:
        """A worker that came has all agents: the one before it leaves."""
        before = self._workers.get(place)
        came = self._workers[place] = self._rolling.swap(before)
        self._names[place] = came.process
        self._schedule.started(place)
        self._schedule.ready(place, now)
        self._kill_at_s = now + self._drain_s + PATIENCE_S
        if before is not None:
            before.tell(LEAVE)
            self._hung.forget(before)

    def _name_all(self) -> None:
        """Tell all which workers there are now."""
        names = [*self._names, *(each.process for each in self._rolling.workers)]
        line = PEERS + " ".join(dict.fromkeys(names)).encode() + b"\n"
        for worker in self._all:
            worker.tell(line)

    def _rolled(self, worker: WorkerProcess, status: int) -> None:
        """A worker ended that was to: or the one that came, and then all stays as it is."""
        self._kill_at_s = None if not self._stop_signals else self._kill_at_s
        if not self._rolling.ended(worker) and not self._stop_signals:
            _log.error("workers_not_replaced", reason=f"worker {worker.index} ended with status {status}")
        elif not self._rolling.under_way and not self._stop_signals:
            _log.info("workers_replaced", workers=len(self._names))
        self._name_all()

    def _ended(self, worker: WorkerProcess, status: int, now: float) -> None:
        with contextlib.suppress(KeyError):
            self._selector.unregister(worker.channel)
        self._hung.ended(worker)
        worker.close()
        if worker in self._rolling.workers:
            self._rolled(worker, status)
            return
        del self._workers[worker.index]
        if self._stop_signals:
            self._left(worker.index)
            return
        began = self._schedule.began
        wait_s = self._schedule.ended(worker.index, status, now)
        how = {"signal": -status} if status < 0 else {"status": status}
        if self._schedule.verdict is None:
            _log.error("worker_ended", worker=worker.index, pid=worker.pid, **how, again_in_s=wait_s)
        elif not began and status <= 0:  # else it has said itself what is wrong
            _log.error("workers_given_up", **how)

    def _receive(self, number: int) -> None:
        """A signal came."""
        if number in _STOPS:
            self._stop_signals += 1
            grace_s = self._drain_s + PATIENCE_S if self._stop_signals == 1 else FORCED_S
            self._kill_at_s = self._clock() + grace_s
            for worker in self._all:
                worker.tell(STOP if self._stop_signals == 1 else END)
                self._hung.forget(worker)
                if not worker.is_ready:  # nothing runs there, and it may not listen yet
                    worker.signal(signal.SIGTERM)
        elif number == signal.SIGUSR2:
            self._roll()
        elif number == signal.SIGHUP:
            for worker in self._all:
                if worker.is_ready:
                    worker.signal(number)
                else:
                    worker.reload_later = True

    def _end(self) -> None:
        """Leave nobody behind."""
        for worker in self._all:
            worker.signal(signal.SIGKILL)
            while worker.status() is None:
                time.sleep(0.01)
            worker.close()


@contextlib.contextmanager
def _signals() -> Iterator[int]:
    """A descriptor from which signals can be read, a byte each, instead of what they do outside."""
    signals, wake = os.pipe()
    for descriptor in (signals, wake):
        os.set_blocking(descriptor, False)
    earlier_wake = signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    numbers = (*_STOPS, *_OTHERS, signal.SIGCHLD)
    earlier = {number: signal.signal(number, lambda *_: None) for number in numbers}
    try:
        yield signals
    finally:
        for number, handler in earlier.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(earlier_wake)
        os.close(signals)
        os.close(wake)


def _read(descriptor: int) -> bytes:
    try:
        return os.read(descriptor, 4096)
    except BlockingIOError:
        return b""
