"""What outcomes say of the multipliers of a prediction, as sums that several processes can add up. Pure.

:class:`gateway.scheduling.learning.regression.ShareRegression` keeps decaying sums of products. Such sums of
different outcomes may be added, so each process tells those of its own outcomes alone, and adds up what all
others told last. Nothing is counted twice, in whatever order it is told, and however often.
"""

import math
from collections.abc import Iterable, Sequence

from shared.process.frozen import frozen

MOST_WEIGHT = 250.0
"""As many outcomes the evidence of one process weighs at most: as it keeps itself, and some more."""


@frozen
class Evidence:
    """``count`` outcomes were seen; ``common`` is their common multiplier. ``products`` are the rows of the
    symmetrical matrix from the diagonal on, ``rest`` the right side."""

    count: int
    common: float
    products: tuple[float, ...]
    rest: tuple[float, ...]

    def matrix(self, weight: float = 1.0) -> list[list[float]]:
        """The products as a matrix, times ``weight``."""
        size = len(self.rest)
        rows = [[0.0] * size for _ in range(size)]
        places = ((row, column) for row in range(size) for column in range(row, size))
        for (row, column), product in zip(places, self.products, strict=True):
            rows[row][column] = rows[column][row] = weight * product
        return rows

    def scaled(self, weight: float) -> "Evidence":
        """The same, at another weight."""
        products, rest = (tuple(weight * each for each in part) for part in (self.products, self.rest))
        return Evidence(self.count, self.common, products, rest)

    def rounded(self) -> "Evidence":
        """The same to six digits, as it is told."""
        products, rest = (tuple(map(_rounded, part)) for part in (self.products, self.rest))
        return Evidence(self.count, _rounded(self.common), products, rest)


def added(parts: Sequence[tuple[Evidence, float]]) -> Evidence | None:
    """All of them, each times its weight; None of none."""
    if not parts:
        return None
    whole = math.fsum(weight * min(each.count, MOST_WEIGHT) for each, weight in parts)
    log = math.fsum(weight * min(each.count, MOST_WEIGHT) * math.log(each.common) for each, weight in parts)
    return Evidence(
        sum(each.count for each, _ in parts),
        math.exp(log / whole),
        _sums((each.products, weight) for each, weight in parts),
        _sums((each.rest, weight) for each, weight in parts),
    )


def _sums(parts: Iterable[tuple[tuple[float, ...], float]]) -> tuple[float, ...]:
    scaled = [[weight * each for each in values] for values, weight in parts]
    return tuple(map(math.fsum, zip(*scaled, strict=True)))


def _rounded(value: float) -> float:
    return float(f"{value:.6g}")
