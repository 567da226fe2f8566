"""What the audit log says of a finished request: who asked, where it ran and why, and what it used."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from gateway.audit.records import Entry
from gateway.domain import Tier
from gateway.quotas import Price
from shared.messages import Usage


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

    def entry(self) -> Entry:
        return Entry(self.at_s, "request", facts_of(self))


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
    return found | _used(request)


def _used(request: RequestFacts) -> dict[str, Any]:
    """Where it ran, and what that took."""
    found: dict[str, Any] = {}
    if request.deployments:
        found["ran"] = _ran(request.deployments, request.troubles)
    usage = request.usage
    if usage is not None:
        tokens = {"in": usage.prompt_tokens, "out": usage.completion_tokens, "cached": usage.cached_tokens}
        found["tokens"] = tokens
    if request.gpu_s:
        found["gpu_s"] = round(request.gpu_s, 6)
    if cost := _cost(request):
        found["cost"] = round(cost, 9)
    return found


def _cost(request: RequestFacts) -> float:
    """In money."""
    if request.price is None:
        return 0.0
    usage, cost = request.usage, request.gpu_s * request.price.gpu_second
    if usage is not None:
        cost += request.price.of_tokens(usage.prompt_tokens, usage.completion_tokens)
    return cost


def _ran(deployments: Sequence[str], troubles: Sequence[tuple[str, str]] | None) -> list[list[str]]:
    """Each deployment with what became of it; empty: it answered, or the request ended with it."""
    if not troubles:
        return [[deployment, ""] for deployment in deployments]
    why = list(troubles)
    ran = []
    for deployment in deployments:
        reason = next((each for each in why if each[0] == deployment), None)
        if reason is not None:
            why.remove(reason)
        ran.append([deployment, reason[1] if reason is not None else ""])
    return ran


def _ms(seconds: float) -> float:
    return round(seconds * 1000, 2)
