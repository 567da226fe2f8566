"""How fast a deployment answers: moving averages of its time to first byte and of its time per byte.

Geometric means: a prompt a hundred times as long as usual, of which each deployment gets one now and then,
moves an average by half, not tenfold. Streams and answers in one piece are kept apart; the latter have no
first byte before they are done.
"""

import math
from enum import Enum, auto

WEIGHT = 0.1
"""Of the latest answer, once there are ten: about the last twenty count."""

LEAST_SAMPLES = 10

USUAL_WEIGHT = 0.005
"""Of the latest answer in what is usual: about the last four hundred count."""


class Measure(Enum):
    STREAM_FIRST_BYTE_S = auto()
    STREAM_S_PER_BYTE = auto()
    UNARY_S_PER_BYTE = auto()


LEAST: dict[Measure, float] = {Measure.STREAM_FIRST_BYTE_S: 0.1}
"""Nobody is slow who is faster than this."""


class AnswerPace:
    """One deployment's averages."""

    __slots__ = ("_logs", "_noted", "_samples", "_usual")

    def __init__(self) -> None:
        self._logs: dict[Measure, float] = {}
        self._samples: dict[Measure, int] = {}
        self._usual: dict[Measure, float] = {}
        self._noted: dict[Measure, int] = {}

    def note(self, streaming: bool, first_byte_s: float, total_s: float, size_bytes: int) -> None:
        """An answer of ``size_bytes`` came whole; times from the opening of its stream."""
        size_bytes = max(size_bytes, 1)
        if streaming:
            self._add(Measure.STREAM_FIRST_BYTE_S, first_byte_s)
            self._add(Measure.STREAM_S_PER_BYTE, (total_s - first_byte_s) / size_bytes)
        else:
            self._add(Measure.UNARY_S_PER_BYTE, total_s / size_bytes)

    def mean(self, measure: Measure) -> float | None:
        """None before there are enough samples."""
        if self._samples.get(measure, 0) < LEAST_SAMPLES:
            return None
        return math.exp(self._logs[measure])

    def usual(self, measure: Measure) -> float | None:
        """What it is in the long run; None before there are enough samples."""
        if self._noted.get(measure, 0) < LEAST_SAMPLES:
            return None
        return math.exp(self._usual[measure])

    def clear(self) -> None:
        """Begin anew, but for what is usual."""
        self._logs.clear()
        self._samples.clear()

    def _add(self, measure: Measure, value: float) -> None:
        log = math.log(max(value, 1e-9))
        samples = self._samples[measure] = self._samples.get(measure, 0) + 1
        before = self._logs.get(measure, log)
        self._logs[measure] = before + max(1.0 / samples, WEIGHT) * (log - before)
        noted = self._noted[measure] = self._noted.get(measure, 0) + 1
        usual = self._usual.get(measure, log)
        self._usual[measure] = usual + max(1.0 / noted, USUAL_WEIGHT) * (log - usual)
