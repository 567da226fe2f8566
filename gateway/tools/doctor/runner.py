"""Runs checks side by side, each within its time."""

import queue
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from shared.process.checks import Check, CheckOutcome, CheckState, failed, skipped
from shared.process.excerpt import printable


@dataclass(frozen=True, slots=True)
class CheckResult:
    """What came of one check."""

    id: str
    outcome: CheckOutcome
    took_s: float

    @property
    def state(self) -> CheckState:
        return self.outcome.state


class _Running:
    """One check in its thread. The thread is a daemon: one that hangs, as in a driver or in looking up a
    name, keeps nothing alive."""

    def __init__(self, check: Check, done: Callable[["_Running", CheckOutcome], None], now: float) -> None:
        self.check = check
        self.began_s = now
        self._done = done
        threading.Thread(target=self._run, name=f"check {check.id}", daemon=True).start()

    def _run(self) -> None:
        try:
            outcome = self.check.run()
        except Exception as error:  # whatever a check forgot
            outcome = failed(
                f"This check itself failed ({type(error).__name__}: {printable(str(error))}).",
                "This is a defect of Trunkline: report it with this line.",
            )
        self._done(self, outcome)


def run_checks(checks: Sequence[Check], clock: Callable[[], float] = time.monotonic) -> list[CheckResult]:
    """What came of each check, in their order. A check begins when those of :attr:`Check.after` are over."""
    round_ = _Round(checks, clock)
    while len(round_.results) < len(checks):
        round_.begin()
        round_.wait()
    return [round_.results[check.id] for check in checks]


class _Round:
    """All checks of one call."""

    def __init__(self, checks: Sequence[Check], clock: Callable[[], float]) -> None:
        self.results: dict[str, CheckResult] = {}
        self._clock = clock
        self._waiting = {check.id: check for check in checks}
        self._known = frozenset(self._waiting)
        self._running: dict[str, _Running] = {}
        self._blocked: set[str] = set()
        """Checks that failed, and those that were skipped for them."""
        self._ended: queue.SimpleQueue[tuple[_Running, CheckOutcome]] = queue.SimpleQueue()

    def begin(self) -> None:
        """Begin those that can be, and skip those that have no meaning any more."""
        for check in list(self._waiting.values()):
            before = [each for each in check.after if each in self._known]
            if hindering := [each for each in before if each in self._blocked]:
                del self._waiting[check.id]
                self._blocked.add(check.id)
                self._note(check, skipped(f"It has no meaning while {hindering[0]} fails."), 0.0)
            elif all(each in self.results for each in before):
                del self._waiting[check.id]
                self._running[check.id] = _Running(check, self._done, self._clock())

    def wait(self) -> None:
        """For the first that ends, or whose time is over."""
        if not self._running:
            return
        first = min(self._running.values(), key=lambda one: one.began_s + one.check.limit_s)
        left_s = first.began_s + first.check.limit_s - self._clock()
        try:
            one, outcome = self._ended.get(timeout=max(0.0, left_s))
        except queue.Empty:
            one, outcome = first, _late(first.check)
        if self._running.pop(one.check.id, None) is not None:  # else it was late
            self._note(one.check, outcome, self._clock() - one.began_s)

    def _done(self, one: _Running, outcome: CheckOutcome) -> None:
        self._ended.put((one, outcome))

    def _note(self, check: Check, outcome: CheckOutcome, took_s: float) -> None:
        self.results[check.id] = CheckResult(check.id, outcome, took_s)
        if outcome.state is CheckState.FAILED:
            self._blocked.add(check.id)


def _late(check: Check) -> CheckOutcome:
    return failed(
        f"Nothing came of this check within {check.limit_s:g} seconds.",
        "Look at what it asks: that hangs, or is very slow.",
    )
