"""A few of many deployments."""

from collections.abc import Sequence

from gateway.scheduling.base import DeploymentView

SAMPLE = 16
"""Of more open deployments than all are considered of, so many at random are compared, and those that have
read some of the prompt. The best of 16 is among the best tenth of a fleet in four of five cases."""

FULL = 4
"""Of those without a free slot so many, beside those that have read some of the prompt."""

SPREAD = 2_654_435_761  # spreads consecutive numbers evenly: Knuth's multiplicative hashing


def spread(
    number: int, views: Sequence[DeploymentView], size: int, seed: int = 0
) -> Sequence[DeploymentView]:
    """About ``size`` of ``views``, evenly spread, a different subset for each ``number`` of a request."""
    step = max(1, len(views) // size)
    return views[(number * SPREAD + seed) % step :: step]
