"""How many items engines computed at once, as a STATE says it (PROTOCOL §4.7). Pure."""

from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from shared.protocol.limits import BATCH_SIZES
from shared.protocol.members import Count, adapter_of


@dataclass(frozen=True, slots=True)
class BatchSizes:
    """Batches since an engine's start."""

    counts: tuple[Count, ...] = (0,) * (len(BATCH_SIZES) + 1)
    """For each bound, those that are no larger, without those that are counted before."""
    items: Count = 0
    """In all of them together."""

    def since(self, before: "BatchSizes") -> "BatchSizes":
        """What is new since ``before``: all of it where the engine has begun anew."""
        counts = tuple(now - then for now, then in zip(self.counts, before.counts, strict=True))
        if self.items < before.items or min(counts) < 0:
            return self
        return BatchSizes(counts, self.items - before.items)


def usable_batch_sizes(value: Any) -> BatchSizes | None:
    """None for what cannot be read, as of a version that counts by other bounds."""
    try:
        found = adapter_of(BatchSizes).validate_python(value)
    except ValidationError:
        return None
    return found if len(found.counts) == len(BATCH_SIZES) + 1 else None
