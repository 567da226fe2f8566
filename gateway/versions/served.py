"""What serves a target now, as far as the index knows."""

from gateway.aliases import Target
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


def versions_of(index: ModelIndex, model: str) -> set[str]:
    """The versions in which ``model`` is served now; "" stands for deployments that say none."""
    return {deployment.version for deployment in index.serving(model)}


def just_gone(index: ModelIndex, model: str, now: float, grace_s: float) -> bool:
    """Whether some deployment of ``model`` went within the last ``grace_s``: it may be back at once."""
    record = index.models.get(model)
    return record is not None and now - record.left_s < grace_s
