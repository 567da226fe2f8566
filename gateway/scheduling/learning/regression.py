"""Recursive least squares with forgetting, of the shares a prediction is made of; and how far predictions
were from outcomes, so that the model can be judged.

What is to be learnt is how far off each part of a prior prediction is: with parts ``p_j`` (seconds,
summing to the predicted ``p``) an outcome ``y`` is explained as ``y / p = sum m_j p_j / p``, with
multipliers ``m_j`` that are 1 for a perfect prior. Working on shares makes every error a relative one,
so an answer of a minute does not drown those of a second.

Kept is the information form: decaying sums of products, to which a pull of constant strength towards one
common multiplier is added whenever it is solved. So nothing winds up when all observations look alike,
directions in which nothing is seen keep the common multiplier, and rounding cannot pile up: the sums
forget.
"""

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import repeat
from operator import add, mul, truediv

from gateway.scheduling.learning.evidence import MOST_WEIGHT, Evidence

FORGETTING = 0.005
FORGETTING_MORE = 0.1
"""What an observation loses of its weight with the next one: about the last two hundred count while they
agree with what is expected, as few as ten when they do not."""

PULL = 0.1
"""Strength of the pull towards the common multiplier, in observations."""

STEADYING = 2e-5
"""Pull beside, as a share of what was heard from others: that was rounded on its way."""

TOLERANCE = 2.5
"""Deviations that count in full, in mean absolute deviations; larger ones count as if they were as large
(Huber)."""

OPEN_MINDED = 3
FIRST_BOUND = math.log(30.0)
"""How far the first outcomes may be off, as a logarithm: the size of the model is not known yet."""

SPREAD_LEAST = 0.05
SPREAD_MOST = 0.5
COMMON_STEPS = 30.0
"""Observations that the common multiplier remembers."""

SETTLED = 64
SOLVE_EVERY = 4
"""Once so many observations were made, one more changes little: the multipliers are computed with each
fourth."""

LEAST, MOST = 1e-4, 1e4
"""Multipliers stay within these: no device is ten thousand times another."""

APART = 30.0
"""No part's multiplier is further from the common one than by this factor."""


class ShareRegression:
    """Multipliers of the parts of a prediction. ``leanings`` say where each part's begins, and is pulled to:
    that many times the common one."""

    __slots__ = (
        "_heard",
        "_leanings",
        "_products",
        "_rest",
        "_spread",
        "common",
        "count",
        "heard_weight",
        "multipliers",
        "size",
    )

    def __init__(self, leanings: Sequence[float], common: float = 1.0) -> None:
        self._leanings = tuple(leanings)
        size = self.size = len(self._leanings)
        self.count = 0
        """Outcomes observed here."""
        self._heard: Evidence | None = None
        self.heard_weight = 1.0
        """What is left of the weight of what was heard, after what was observed since."""
        self._products = [[0.0] * size for _ in range(size)]
        self._rest = [0.0] * size
        self._spread = 0.5
        self.restart(common)

    @property
    def known(self) -> int:
        """Outcomes observed here and by others."""
        return self.count if self._heard is None else self.count + self._heard.count

    def evidence(self) -> Evidence | None:
        """What the outcomes observed here say; None: there were none."""
        if not self.count:
            return None
        products = [row[at:] for at, row in enumerate(self._products)]
        return Evidence(
            self.count, self.common, tuple(each for row in products for each in row), tuple(self._rest)
        )

    def hear(self, heard: Evidence | None) -> None:
        """What others observed, all of them together; it takes the place of what was heard before. It counts
        less with each outcome that is observed here, as what was observed here does."""
        self._heard, self.heard_weight = heard, 1.0
        if heard is not None and not self.count:
            self.common = min(max(heard.common, LEAST), MOST)
        if heard is not None or self.count:
            self._solve()

    def restart(self, common: float) -> None:
        """Begin at ``common``, as long as nothing was observed."""
        assert not self.known
        self.common = min(max(common, LEAST), MOST)
        self.multipliers = [self.common * leaning for leaning in self._leanings]

    def explained(self, parts: Sequence[float]) -> float:
        """What the prior's ``parts`` are now expected to take together, in seconds."""
        return math.fsum(map(mul, self.multipliers, parts))

    def observe(self, parts: Sequence[float], outcome: float, weight: float = 1.0) -> None:
        """``parts`` are the prior's, in seconds; ``outcome`` what they were together. ``weight`` is over 0 to
        1. What is not finite or not positive teaches nothing."""
        total = math.fsum(parts)
        if not (0.0 < total < math.inf and 0.0 < outcome < math.inf and 0.0 < weight <= 1.0):
            return
        shares = list(map(truediv, parts, repeat(total)))
        ratio = outcome / total
        ratio = LEAST if ratio < LEAST else MOST if ratio > MOST else ratio
        expected = math.fsum(map(mul, self.multipliers, shares))
        ratio = self._take_in(ratio, expected, weight)
        self.count += 1
        kept = 1.0 - FORGETTING - FORGETTING_MORE * (self._spread / SPREAD_MOST) ** 3
        scaled = weight / (expected if expected > LEAST else LEAST) ** 2
        for row, share in enumerate(shares):
            products = self._products[row]
            for column in range(self.size):
                products[column] = kept * products[column] + scaled * share * shares[column]
            self._rest[row] = kept * self._rest[row] + scaled * share * ratio
        self.heard_weight *= kept
        if self.count < SETTLED or self.count % SOLVE_EVERY == 0:
            self._solve()

    def _take_in(self, ratio: float, expected: float, weight: float) -> float:
        """``ratio``, no further from what was expected than outcomes mostly are, once the common multiplier
        has learnt from it."""
        off, spread = math.log(ratio / expected), self._spread
        bound = TOLERANCE * spread
        far = off if off > 0.0 else -off
        spread += ((2 * bound if far > 2 * bound else far) - spread) / COMMON_STEPS
        self._spread = (
            SPREAD_LEAST if spread < SPREAD_LEAST else SPREAD_MOST if spread > SPREAD_MOST else spread
        )
        count = self.count if self._heard is None else self.known
        if count < OPEN_MINDED and bound < FIRST_BOUND:
            bound = FIRST_BOUND
        ratio = expected * math.exp(-bound if off < -bound else bound if off > bound else off)
        common = self.common
        step = weight / (1.0 + (count if count < COMMON_STEPS else COMMON_STEPS))
        common *= math.exp(step * math.log(ratio / common) * (1.0 if count else 0.8))
        self.common = LEAST if common < LEAST else MOST if common > MOST else common
        return ratio

    def _solve(self) -> None:
        common = self.common
        pull = PULL / common**2
        matrix, rest = list(map(list, self._products)), list(self._rest)
        if self._heard is not None:
            pull += STEADYING * _add(matrix, rest, self._heard, self.heard_weight)
        for row, leaning in enumerate(self._leanings):
            matrix[row][row] += pull
            rest[row] += pull * common * leaning
        multipliers, high = _solved(matrix, rest), common * APART
        for row, leaning in enumerate(self._leanings):
            low = common * leaning / APART
            if multipliers[row] < low:
                multipliers[row] = low
            elif multipliers[row] > high:
                multipliers[row] = high
        self.multipliers = multipliers


def bounded(evidence: Evidence, leanings: Sequence[float]) -> Evidence | None:
    """What another process says, weighing no more than ``MOST_WEIGHT`` outcomes; None where no outcomes can
    say that."""
    if not LEAST <= evidence.common <= MOST:
        return None
    heard = ShareRegression(leanings)
    try:
        heard.hear(evidence)
    except ArithmeticError:
        return None
    multipliers = heard.multipliers
    rows = [math.fsum(map(mul, row, multipliers)) for row in evidence.matrix()]
    weight = math.fsum(map(mul, rows, multipliers))
    if not (all(0.0 < each < math.inf for each in multipliers) and 0.0 <= weight < math.inf):
        return None
    if not _is_positive(evidence):
        return None
    return evidence if weight <= MOST_WEIGHT else evidence.scaled(MOST_WEIGHT / weight)


def _is_positive(evidence: Evidence) -> bool:
    """Whether the products can be sums of squares that were rounded: with half of what steadies them every
    pivot of an elimination is above 0."""
    matrix, size = evidence.matrix(), len(evidence.rest)
    trace = math.fsum(matrix[pivot][pivot] for pivot in range(size))
    for pivot in range(size):
        matrix[pivot][pivot] += STEADYING / 2 * trace
    for pivot in range(size):
        row = matrix[pivot]
        if not 0.0 < row[pivot] < math.inf:
            return False
        for other in matrix[pivot + 1 :]:
            factor = other[pivot] / row[pivot]
            for column in range(pivot, size):
                other[column] -= factor * row[column]
    return True


def _add(matrix: list[list[float]], rest: list[float], evidence: Evidence, weight: float) -> float:
    """Returns the sum of the diagonal that was added."""
    trace = 0.0
    for row, products in enumerate(evidence.matrix(weight)):
        matrix[row] = list(map(add, matrix[row], products))
        rest[row] += weight * evidence.rest[row]
        trace += products[row]
    return trace


def _solved(matrix: list[list[float]], rest: list[float]) -> list[float]:
    """Solves a positive definite system by elimination; changes both arguments."""
    size = len(rest)
    for pivot in range(size):
        row = matrix[pivot]
        for below in range(pivot + 1, size):
            factor = matrix[below][pivot] / row[pivot]
            if factor:
                other = matrix[below]
                for column in range(pivot, size):
                    other[column] -= factor * row[column]
                rest[below] -= factor * rest[pivot]
    for pivot in range(size - 1, -1, -1):
        row, behind = matrix[pivot], pivot + 1
        known = math.fsum(map(mul, row[behind:], rest[behind:]))
        rest[pivot] = (rest[pivot] - known) / row[pivot]
    return rest


LATEST = 256
"""Latest errors kept of each kind."""

MOST_OFF = 1e6
"""An error of a larger factor counts as one of so much."""


@dataclass(slots=True)
class Errors:
    """The errors of one kind of prediction. Actual / predicted is kept; logarithms are taken on reading.
    ``bias`` is the mean of ln(actual / predicted) over the latest: 0 is fair, 0.1 means that things take 10 %
    longer than predicted."""

    count: int = 0
    latest: deque[float] = field(default_factory=lambda: deque(maxlen=LATEST))

    def note(self, predicted_s: float, actual_s: float) -> None:
        if 0.0 < predicted_s < math.inf and 0.0 < actual_s < math.inf:
            self.count += 1
            off = actual_s / predicted_s
            self.latest.append(1 / MOST_OFF if off < 1 / MOST_OFF else MOST_OFF if off > MOST_OFF else off)

    @property
    def bias(self) -> float:
        return math.fsum(map(math.log, self.latest)) / len(self.latest) if self.latest else 0.0

    def error_factor(self, quantile: float) -> float:
        """The factor, 1 or more, that this share of the latest predictions was off by at most, up or down."""
        if not self.latest:
            return 1.0
        ordered = sorted(map(abs, map(math.log, self.latest)))
        return math.exp(ordered[min(int(quantile * len(ordered)), len(ordered) - 1)])


@dataclass(slots=True)
class Accuracy:
    """Errors of the predicted time to the first token, where one was seen, and of the whole time."""

    first_token: Errors = field(default_factory=Errors)
    total: Errors = field(default_factory=Errors)
