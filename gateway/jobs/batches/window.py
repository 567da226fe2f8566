"""Whether a batch can be done within its window. One that cannot is refused before anything of it runs."""

import asyncio
import math
from collections.abc import Callable, Mapping

from gateway.domain.batches import TRY_ANYWAY, WINDOW_KEY, BatchError, BatchRecord
from gateway.jobs.predictions import BatchWork, batch_takes_s
from gateway.jobs.service import FleetOutlook
from gateway.storage.batches import BatchStore

_HOUR_S, _DAY_S = 3600.0, 86_400.0


class WindowCheck:
    """Belongs to the event loop's thread."""

    def __init__(
        self,
        batches: BatchStore,
        outlook: FleetOutlook,
        wall: Callable[[], float],
        *,
        weights: Callable[[], Mapping[str, float]] = dict,
        tenant_slots: int | None = None,
    ) -> None:
        """``weights`` gives those of tenants; ``tenant_slots``: so many jobs of a tenant run at once."""
        self._batches = batches
        self._outlook = outlook
        self._wall = wall
        self._weights = weights
        self._tenant_slots = tenant_slots

    async def __call__(self, batch: BatchRecord, model: str, work: BatchWork) -> BatchError | None:
        """Why the batch is refused. One is never refused that asks to be tried, of whose model nobody knows
        how fast it is, or which nobody serves just now: fleets come and go. Raises StateError."""
        if (batch.new.metadata or {}).get(WINDOW_KEY) == TRY_ANYWAY or not work.seconds:
            return None
        slots = self._outlook.slots(model)
        if not slots:
            return None
        now_s = self._wall()
        open_s = await asyncio.to_thread(self._batches.open_work, model, batch.id, now_s)
        takes_s = batch_takes_s(work, batch.new.tenant, open_s, self._weights(), slots, self._tenant_slots)
        left_s = batch.new.expires_s - now_s
        if takes_s <= left_s:
            return None
        on = "the slot" if slots == 1 else f"the {slots} slots"
        beside = ", with the work that is there already" if any(open_s.values()) else ""
        message = (
            f"The batch would take about {span(takes_s)} on {on} that '{model}' has now{beside}. Its window "
            f"ends in {span(max(0.0, left_s))}. Give it a longer completion_window, make it smaller, or have "
            f"it begun all the same with {WINDOW_KEY}={TRY_ANYWAY} in its metadata."
        )
        return BatchError("window_too_short", message, None, "completion_window")


def span(seconds: float) -> str:
    """A length of time in words, rounded up: ``40 minutes``, ``31 hours``, ``9 days``."""
    for unit_s, name in ((_DAY_S, "days"), (_HOUR_S, "hours")):
        if seconds >= 2 * unit_s:
            return f"{math.ceil(seconds / unit_s)} {name}"
    minutes = max(1, math.ceil(seconds / 60.0))
    return "1 minute" if minutes == 1 else f"{minutes} minutes"
