"""What is asked of each model: how many requests a second, and how long they are. Pure and bounded."""

from collections import deque
from typing import NamedTuple

from gateway.domain.request import Request, Tier
from gateway.scheduling.recent import RecentDict
from gateway.scheduling.scaling.bursts import PIECE_S

_BATCH = Tier.BATCH
"""Members of enumerations for the path of every request: a global is found faster."""

SPAN_S = 60.0
"""A rate is that of the last span; the trend is how much that is above the span before."""

_PIECES = int(SPAN_S / PIECE_S)

LATEST = 128
"""Requests whose lengths are remembered of each model."""

MOST_MODELS = 4096
HIGH = 0.99


class ModelArrivals(NamedTuple):
    """Of one model. Rates leave the tier batch out."""

    per_s: float = 0.0
    before_per_s: float = 0.0
    """In the span before."""
    latest_s: float = float("-inf")
    """When the latest came, of any tier."""
    input_tokens: float = 0.0
    output_tokens: float = 0.0
    high_input_tokens: float = 0.0
    high_output_tokens: float = 0.0
    known: int = 0
    """Requests that the lengths are of."""
    trend: bool = False
    """Whether requests have been counted for both spans, so that the rates tell of a rise."""
    piece_per_s: float = 0.0
    """In the latest ``PIECE_S`` that are over."""

    @property
    def rising_per_s2(self) -> float:
        """How fast the rate rises; 0 where it does not."""
        return max(0.0, self.per_s - self.before_per_s) / SPAN_S if self.trend else 0.0


class ArrivalCounts:
    """Of all models. ``note`` is called for every request that may wait or is refused for want of room."""

    def __init__(self) -> None:
        self._models = RecentDict[str, _Series](MOST_MODELS)

    def note(self, request: Request, now: float) -> None:
        """One came."""
        series = self._models.get(request.model)
        if series is None:
            series = self._models.renewed(request.model, lambda: _Series(now))
        series.latest_s = now
        series.lengths.append((request.input_tokens + request.work_tokens, request.output_tokens))
        if request.tier is not _BATCH:
            if now >= series.piece_ends_s:
                series.begin_pieces(now)
            series.came += 1

    def models(self) -> list[str]:
        """Those of which something is known."""
        return list(self._models)

    def of(self, model: str, now: float) -> ModelArrivals:
        """What was asked of ``model`` lately."""
        series = self._models.get(model)
        return ModelArrivals() if series is None else series.arrivals(now)


class _Series:
    def __init__(self, now: float) -> None:
        self.came = 0
        """In the piece that is counted into."""
        self.pieces: deque[int] = deque([0] * (2 * _PIECES - 1), maxlen=2 * _PIECES - 1)
        """In those before it."""
        self.piece_ends_s = now + PIECE_S
        self.latest_s = now
        self.begun_s = now
        self.lengths: deque[tuple[int, int]] = deque(maxlen=LATEST)

    def begin_pieces(self, now: float) -> None:
        """Time has come to where the piece that is counted into is over."""
        passed = int((now - self.piece_ends_s) // PIECE_S) + 1
        self.pieces.extend([self.came] + [0] * min(passed - 1, 2 * _PIECES))
        self.came = 0
        self.piece_ends_s += passed * PIECE_S

    def arrivals(self, now: float) -> ModelArrivals:
        if now >= self.piece_ends_s:
            self.begin_pieces(now)
        counts = [*self.pieces, self.came]
        into_s = PIECE_S - (self.piece_ends_s - now)
        span_s = (_PIECES - 1) * PIECE_S + into_s
        known_s = max(PIECE_S, min(span_s, now - self.begun_s))
        inputs = sorted(each for each, _ in self.lengths)
        outputs = sorted(each for _, each in self.lengths)
        high = min(len(inputs) - 1, int(HIGH * len(inputs)))
        return ModelArrivals(
            sum(counts[_PIECES:]) / known_s,
            sum(counts[:_PIECES]) / SPAN_S,
            self.latest_s,
            sum(inputs) / len(inputs),
            sum(outputs) / len(outputs),
            inputs[high],
            outputs[high],
            len(inputs),
            now - self.begun_s >= 2 * SPAN_S,
            counts[-2] / PIECE_S,
        )
