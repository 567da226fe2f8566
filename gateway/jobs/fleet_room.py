"""How many jobs the fleet can begin now, and a few more. Pure."""

import math
from collections.abc import Callable, Sequence

from gateway.fleet.model_index import ModelIndex

AHEAD_S = 2.0
"""Work for so long waits in the queue beside what runs, so that no slot is idle while jobs are claimed."""

HOLD_GUESS_S = 2.0
"""How long a job keeps its slot, until some have."""


class FleetRoom:
    """Of one process. Belongs to the event loop's thread."""

    def __init__(
        self,
        index: ModelIndex,
        depth: Callable[[str], int],
        models_of: Callable[[str], Sequence[str]] = lambda name: (name,),
    ) -> None:
        """``depth`` says how many requests wait for a model; ``models_of`` what an alias stands for."""
        self._index = index
        self._depth = depth
        self._models_of = models_of

    def most(self, name: str, pending: int) -> int:
        """How many jobs for the model or alias ``name`` to claim, where ``pending`` of those that were
        claimed are not answered yet. None where nobody serves it; one where it must be loaded first; and one
        waits in the queue though others do, so that jobs get what is theirs by age."""
        free = slots = waiting = 0
        loadable = False
        hold_s = 0.0
        for model in self._models_of(name):
            record = self._index.models.get(model)
            if record is None:
                continue
            free += record.free_slots
            slots += record.slots
            waiting += self._depth(model)
            loadable = loadable or bool(record.loadable)
            hold_s = max(hold_s, record.hold_s or HOLD_GUESS_S)
        if not slots:
            return max(0, 1 - pending) if loadable else 0
        ahead = min(slots, max(1, math.ceil(slots * AHEAD_S / hold_s)))
        return max(free + ahead - max(pending, waiting), 1 - pending)
