"""What the audit log says of a finished request: who asked, where it ran and why, and what it used."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from gateway.domain.quotas import Price
from gateway.domain.request import Tier
from gateway.observability.audit.records import AuditEntry
from shared.protocol.messages import Usage


class RequestFacts(NamedTuple):
    """Facts as they are at a request's end, cheap to put together; made into a line later. No content."""

    at_s: float
    """Seconds since 1970."""
    id: str
    status: int
    error: str | None
    """A code."""
    key_id: str
    tenant: str
    route: str
    model: str | None
    alias: str | None
    target: str
    version: str | None
    tier: Tier | None
    deployments: Sequence[str]
    """It was given to these, in order."""
    troubles: Sequence[tuple[str, str]] | None
    """Deployments that did not bring it to an end, in order, and why."""
    queue_s: float | None
    first_byte_s: float | None
    total_s: float
    usage: Usage | None
    gpu_s: float
    """Seconds of devices, as far as they are known at its end."""
    price: Price | None
    """Of its model."""

    def entry(self) -> AuditEntry:
        return AuditEntry(self.at_s, "request", facts_of(self))


def facts_of(request: RequestFacts) -> dict[str, Any]:
    """As the line has them; times in milliseconds. What is not known is left out."""
    found: dict[str, Any] = {
        "id": request.id,
        "who": f"key:{request.key_id}",
        "tenant": request.tenant,
        "status": request.status,
        "route": request.route,
        "total_ms": _ms(request.total_s),
    }
    if request.error is not None:
        found["error"] = request.error
    if request.model is not None:
        found["model"] = request.model
    if request.alias is not None:
        found["alias"], found["target"] = request.alias, request.target
    if request.version:
        found["version"] = request.version
    if request.tier is not None:
        found["tier"] = request.tier.value
    if request.queue_s is not None:
        found["queue_ms"] = _ms(request.queue_s)
    if request.first_byte_s is not None:
        found["first_byte_ms"] = _ms(request.first_byte_s)
    _add_used(found, request)
    return found


def _add_used(found: dict[str, Any], request: RequestFacts) -> None:
    """Where it ran, and what that took."""
    if request.deployments:
        found["ran"] = request.deployments
        if request.troubles:
            found["why_not"] = _why_not(request.deployments, request.troubles)
    usage = request.usage
    if usage is not None:
        found["tokens_in"], found["tokens_out"] = usage.prompt_tokens, usage.completion_tokens
        if usage.cached_tokens:
            found["tokens_cached"] = usage.cached_tokens
    if request.gpu_s:
        found["gpu_s"] = round(request.gpu_s, 6)
    if request.price is not None and (cost := _cost(request, request.price)):
        found["cost"] = round(cost, 9)


def _cost(request: RequestFacts, price: Price) -> float:
    """In money."""
    usage, cost = request.usage, request.gpu_s * price.gpu_second
    if usage is not None:
        cost += price.of_tokens(usage.prompt_tokens, usage.completion_tokens)
    return cost


def _why_not(deployments: Sequence[str], troubles: Sequence[tuple[str, str]]) -> list[str]:
    """Why each deployment did not bring it to its end; empty: it did, or the request ended with it."""
    left, why_not = list(troubles), []
    for deployment in deployments:
        trouble = next((each for each in left if each[0] == deployment), None)
        if trouble is not None:
            left.remove(trouble)
        why_not.append(trouble[1] if trouble is not None else "")
    return why_not


def _ms(seconds: float) -> float:
    return round(seconds * 1000, 2)
