"""What serves a target now, as far as the index knows."""

from collections.abc import Callable

from gateway.domain.aliases import AliasTarget
from gateway.domain.request import Request
from gateway.domain.residency import Residency
from gateway.fleet.availability import Availability
from gateway.fleet.deployment import Deployment
from gateway.fleet.model_index import ModelIndex
from gateway.scheduling.queue.tickets import Fit

ABSENT_S = 0.1
"""So long it is taken for true that a version is not there, once somebody has looked everywhere."""

MOST = 1024
"""Answers that are remembered."""

_Question = tuple[str, str, str, Residency | None, str | None]


class ServedVersions:
    """Says whether targets are served. Of versions it remembers where it found one: in a large fleet a few
    deployments may be looked for among many. Belongs to one thread."""

    def __init__(self, index: ModelIndex, clock: Callable[[], float]) -> None:
        self.index = index
        self.clock = clock
        self._found: dict[_Question, Deployment | float] = {}
        """A deployment that served it, or until when there is none."""

    def __call__(self, target: AliasTarget, request: Request) -> bool:
        """Whether there is a deployment of ``target`` that may take a request of this kind, now, in a moment
        or once it is loaded."""
        version = target.version
        if version is None:
            availability = self.index.availability(target.model, request.need, request.where, request.agent)
            return availability is Availability.SERVED
        question = target.model, version, request.need, request.where, request.agent
        known = self._found.get(question)
        if isinstance(known, Deployment):
            if self._there(known) and known.suits(request.need, version, False, request.where, request.agent):
                return True
        elif known is not None and self.clock() < known:
            return False
        suiting = (
            each
            for each in there(self.index, target)
            if each.suits(request.need, version, False, request.where, request.agent)
        )
        found = next(suiting, None)
        if len(self._found) >= MOST:
            self._found.clear()
        self._found[question] = found if found is not None else self.clock() + ABSENT_S
        return found is not None

    def _there(self, deployment: Deployment) -> bool:
        record = self.index.models.get(deployment.model)
        return record is not None and any(
            known.get(deployment.key) is deployment for known in (record.serving, record.loadable)
        )


def has_slot(index: ModelIndex, target: AliasTarget, request: Request) -> bool:
    """Whether a slot of ``target`` that suits a request of this kind is free now."""
    fit = Fit(request.need, version=target.version, where=request.where, agent=request.agent)
    return index.free(target.model, fit, 1) > 0


def there(index: ModelIndex, target: AliasTarget) -> list[Deployment]:
    """The deployments of ``target`` that serve it or would be loaded for it."""
    record = index.models.get(target.model)
    if record is None:
        return []
    version = target.version
    known = (*record.serving.values(), *record.loadable.values())
    return [each for each in known if version is None or each.version == version]


def versions_of(index: ModelIndex, model: str) -> set[str]:
    """The versions of ``model`` that are there; "" stands for deployments that say none."""
    return {deployment.version for deployment in there(index, AliasTarget(model))}


def just_gone(index: ModelIndex, model: str, now: float, grace_s: float) -> bool:
    """Whether some deployment of ``model`` went within the last ``grace_s``: it may be back at once."""
    record = index.models.get(model)
    return record is not None and now - record.left_s < grace_s
