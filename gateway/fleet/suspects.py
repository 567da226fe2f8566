"""Which deployments are probed because another gateway has ejected them, or opened their circuits.

At most half of the deployments of a model, those included that are not well anyway: what others say never
takes so many away that the rest cannot serve.
"""

from collections.abc import Iterable, Iterator, Mapping
from itertools import islice

from gateway.fleet.deployment import Deployment
from gateway.fleet.model_index import ModelIndex

MOST_SUSPECT = 2
"""One in so many of a model's deployments may be probed or not well."""

AT_ONCE = 16


def suspects(
    keys: Iterable[str], present: Mapping[str, Deployment], index: ModelIndex, now: float
) -> Iterator[Deployment]:
    """Those of the first of ``keys`` that are suspect from now on."""
    for key in islice(keys, AT_ONCE):
        deployment = present.get(key)
        record = None if deployment is None else index.models.get(deployment.model)
        if deployment is None or deployment.health is None or record is None:
            continue
        unwell = sum(not each.healthy for each in record.serving.values())
        if not deployment.healthy or (unwell + 1) * MOST_SUSPECT > len(record.serving):
            continue
        if deployment.health.suspicion.hint(now):
            yield deployment
