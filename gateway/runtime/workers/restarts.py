"""When each worker is started, and when none is worth another try. Pure; ``now`` in seconds of a clock that
does not go back."""

from dataclasses import dataclass

FIRST_S, MOST_S = 0.1, 10.0
"""The wait before a worker is started again; it doubles with each end that comes before ``STEADY_S``."""

STEADY_S = 10.0
"""A worker that served for so long was well: its end is an accident, and the waits begin anew."""

FIRST_TRIES = 5
"""Tries for the very first worker. It is killed each time by something outside, or by a fault of ours."""


@dataclass(slots=True)
class WorkerSlot:
    """The place of one worker."""

    due_s: float | None
    """When it is to be started; None: it runs, or has to wait for the first one."""
    wait_s: float = FIRST_S
    ready_s: float | None = None
    """Since when the one that runs serves."""


class RestartSchedule:
    """Starts the first worker alone: it makes what all need, and what is wrong is said once. The others
    follow when it serves."""

    def __init__(self, count: int, now: float) -> None:
        self._slots = [WorkerSlot(now if index == 0 else None) for index in range(count)]
        self._ever_ready = False
        self._tries = 0
        self.verdict: int | None = None
        """The exit status with which to give up; None: go on."""

    @property
    def began(self) -> bool:
        """Whether any worker ever served."""
        return self._ever_ready

    def due(self, now: float) -> list[int]:
        """Those to be started now."""
        return [i for i, slot in enumerate(self._slots) if slot.due_s is not None and slot.due_s <= now]

    def next_due_s(self) -> float | None:
        """When there is one to be started; None: not before something happens."""
        return min((slot.due_s for slot in self._slots if slot.due_s is not None), default=None)

    def started(self, index: int) -> None:
        self._slots[index].due_s = None

    def ready(self, index: int, now: float) -> None:
        """It serves."""
        self._slots[index].ready_s = now
        if not self._ever_ready:
            self._ever_ready = True
            for slot in self._slots[:index] + self._slots[index + 1 :]:
                slot.due_s = now

    def ended(self, index: int, status: int, now: float) -> float:
        """It ended with this status, negative for the number of a signal, and nobody asked it to. After how
        many seconds it is to be started again, unless there is a ``verdict``."""
        slot = self._slots[index]
        if not self._ever_ready:
            self._tries += 1
            if status > 0 or self._tries >= FIRST_TRIES:
                self.verdict = max(status, 1)
        if slot.ready_s is not None and now - slot.ready_s >= STEADY_S:
            slot.wait_s = FIRST_S
        wait_s, slot.ready_s = slot.wait_s, None
        slot.due_s = now + wait_s
        slot.wait_s = min(MOST_S, 2 * slot.wait_s)
        return wait_s
