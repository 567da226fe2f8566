"""How far predictions were from outcomes, so that the model can be judged (SCHEDULING §2)."""

import math
from collections import deque
from dataclasses import dataclass, field

LATEST = 256
"""Latest errors kept of each kind."""

MOST_OFF = math.log(1e6)
"""An error of a larger factor counts as one of so much."""


@dataclass(slots=True)
class Errors:
    """Of one kind of prediction. ``bias`` is the mean of ln(actual / predicted) over the latest: 0 is fair,
    0.1 means that things take 10 % longer than predicted."""

    count: int = 0
    latest: deque[float] = field(default_factory=lambda: deque(maxlen=LATEST))

    def note(self, predicted_s: float, actual_s: float) -> None:
        if 0.0 < predicted_s < math.inf and 0.0 < actual_s < math.inf:
            self.count += 1
            off = math.log(actual_s) - math.log(predicted_s)
            self.latest.append(min(max(off, -MOST_OFF), MOST_OFF))

    @property
    def bias(self) -> float:
        return math.fsum(self.latest) / len(self.latest) if self.latest else 0.0

    def off(self, quantile: float) -> float:
        """The factor, 1 or more, that this share of the latest predictions was off by at most, up or down."""
        if not self.latest:
            return 1.0
        ordered = sorted(map(abs, self.latest))
        return math.exp(ordered[min(int(quantile * len(ordered)), len(ordered) - 1)])


@dataclass(slots=True)
class Accuracy:
    """Of the time to the first token and of the whole time."""

    first_token: Errors = field(default_factory=Errors)
    total: Errors = field(default_factory=Errors)

    def note(
        self, first_predicted_s: float, first_s: float | None, total_predicted_s: float, total_s: float
    ) -> None:
        """One answer's times; ``first_s`` is None where no first token was seen."""
        if first_s is not None:
            self.first_token.note(first_predicted_s, first_s)
        self.total.note(total_predicted_s, total_s)
