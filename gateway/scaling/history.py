"""The load of each model and class, as means of steps and their bursts, until the store has them."""

from collections import deque
from dataclasses import dataclass, field

from gateway.scheduling.recent import RecentDict
from gateway.scheduling.scaling.bursts import PIECE_S, PIECES, packed
from gateway.scheduling.scaling.forecast import STEP_S
from gateway.storage.scaling_history import NotedLoad

MOST_SERIES = 500
"""Models times classes of which the load is kept; others are not forecast."""

MOST_WAITING = 50_000
"""Steps that wait for the store; the oldest are dropped."""

KEPT_S = 900.0
"""Who does not write keeps the steps of so long, should it have to in the place of another process."""

_LEAST_SHARE = 0.5
"""Of a step that must have been seen."""


@dataclass(slots=True)
class _Step:
    number: int
    first_s: float
    last_s: float = 0.0
    sum: float = 0.0
    count: int = 0
    pieces: list[float | None] = field(default_factory=lambda: [None] * PIECES)


class LoadHistory:
    """Every process sees the same, and notes it; the one that acts for all writes it down."""

    def __init__(self, interval_s: float = 0.0) -> None:
        """Loads are noted every ``interval_s``."""
        self._least_s = _LEAST_SHARE * STEP_S - 2 * interval_s
        self._steps: dict[tuple[str, str], _Step] = {}
        self._latest = RecentDict[tuple[str, str], tuple[float, float]](MOST_SERIES)
        self._over: deque[NotedLoad] = deque(maxlen=MOST_WAITING)
        self._dropped_at = -1
        """The step in which those that are old were last dropped: none becomes old within a step."""
        self.is_full = False
        """More series came than are kept."""

    def note(self, model: str, device: str, load: float, at_s: float, piece: float | None = None) -> None:
        """``load`` was asked for at ``at_s``, in seconds since 1970, and ``piece`` in the ``PIECE_S`` before
        that which are over, which may be as many seconds ago. None: nobody knows."""
        key, number = (model, device), int(at_s // STEP_S)
        step = self._steps.get(key)
        if step is None or step.number != number:
            if step is None and len(self._steps) >= MOST_SERIES:
                self._drop_old(number)
                if len(self._steps) >= MOST_SERIES:
                    self.is_full = True
                    return
            if step is not None:
                self._end(key, step)
            step = self._steps[key] = _Step(number, at_s)
        step.last_s = at_s
        step.sum += load
        step.count += 1
        if piece is not None:
            step.pieces[int(at_s % STEP_S // PIECE_S)] = piece

    def latest(self, model: str, device: str) -> tuple[float, float] | None:
        """The load of the latest step that is over, and its middle; None: there was none yet."""
        return self._latest.get((model, device))

    def take(self, now_s: float, *, writes: bool) -> list[NotedLoad]:
        """The steps that are over, to be written; nothing for a process that does not write."""
        for key, step in list(self._steps.items()):
            if step.number < int(now_s // STEP_S):
                self._end(key, step)
                del self._steps[key]
        if writes:
            found = list(self._over)
            self._over.clear()
            return found
        while self._over and self._over[0].at_s < now_s - KEPT_S:
            self._over.popleft()
        return []

    def give_back(self, loads: list[NotedLoad]) -> None:
        """They could not be written."""
        room = MOST_WAITING - len(self._over)
        self._over.extendleft(reversed(loads[-room:] if room else []))

    def _end(self, key: tuple[str, str], step: _Step) -> None:
        if step.last_s - step.first_s < self._least_s:
            return
        middle_s, load = (step.number + 0.5) * STEP_S, step.sum / step.count
        self._latest[key] = (load, middle_s)
        self._over.append(NotedLoad(*key, middle_s, load, packed(step.pieces)))

    def _drop_old(self, number: int) -> None:
        if number == self._dropped_at:
            return
        self._dropped_at = number
        for key, step in list(self._steps.items()):
            if step.number < number - 1:
                self._end(key, step)
                del self._steps[key]
