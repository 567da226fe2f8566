"""What serves a target now, as far as the index knows."""

from gateway.aliases import Target
from gateway.deployment import Deployment
from gateway.deployments import Availability, ModelIndex
from gateway.domain import Request
from gateway.queue import Fit


def serves(index: ModelIndex, target: Target, request: Request) -> bool:
    """Whether there is a deployment of ``target`` that may take a request of this kind, now or in a
    moment."""
    if target.version is None:
        return index.availability(target.model, request.route, request.where) is Availability.SERVED
    fit = Fit(request.route, version=target.version, where=request.where)
    return index.someone_else(target.model, fit, patiently=True)


def has_slot(index: ModelIndex, target: Target, request: Request) -> bool:
    """Whether a slot of ``target`` that suits a request of this kind is free now."""
    fit = Fit(request.route, version=target.version, where=request.where)
    return index.free(target.model, fit, 1) > 0


def there(index: ModelIndex, target: Target) -> list[Deployment]:
    """The deployments of ``target`` that serve it or would be loaded for it."""
    record = index.models.get(target.model)
    if record is None:
        return []
    version = target.version
    known = (*record.serving.values(), *record.loadable.values())
    return [each for each in known if version is None or each.version == version]


def versions_of(index: ModelIndex, model: str) -> set[str]:
    """The versions of ``model`` that are there; "" stands for deployments that say none."""
    return {deployment.version for deployment in there(index, Target(model))}


def just_gone(index: ModelIndex, model: str, now: float, grace_s: float) -> bool:
    """Whether some deployment of ``model`` went within the last ``grace_s``: it may be back at once."""
    record = index.models.get(model)
    return record is not None and now - record.left_s < grace_s
