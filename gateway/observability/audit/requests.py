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
    usage = request.usage
    ran = request.deployments or None
    found: dict[str, Any] = {
        "id": request.id,
        "who": f"key:{request.key_id}",
        "tenant": request.tenant,
        "status": request.status,
        "route": request.route,
        "total_ms": _ms(request.total_s),
        "error": request.error,
        "model": request.model,
        "alias": request.alias,
        "target": None if request.alias is None else request.target,
        "version": request.version or None,
        "tier": None if request.tier is None else request.tier.value,
        "queue_ms": _ms(request.queue_s),
        "first_byte_ms": _ms(request.first_byte_s),
        "ran": ran,
        "why_not": _why_not(ran, request.troubles) if ran and request.troubles else None,
        "tokens_in": None if usage is None else usage.prompt_tokens,
        "tokens_out": None if usage is None else usage.completion_tokens,
        "tokens_cached": (usage.cached_tokens or None) if usage is not None else None,
        "gpu_s": round(request.gpu_s, 6) if request.gpu_s else None,
        "cost": _cost(request),
    }
    return {name: value for name, value in found.items() if value is not None}


def _cost(request: RequestFacts) -> float | None:
    """In money; None where it costs nothing or has no price."""
    usage, price = request.usage, request.price
    if price is None:
        return None
    cost = request.gpu_s * price.gpu_second
    if usage is not None:
        cost += price.of_tokens(usage.prompt_tokens, usage.completion_tokens)
    return round(cost, 9) if cost else None


def _why_not(deployments: Sequence[str], troubles: Sequence[tuple[str, str]]) -> list[str]:
    """Why each deployment did not bring it to its end; empty: it did, or the request ended with it."""
    left, why_not = list(troubles), []
    for deployment in deployments:
        trouble = next((each for each in left if each[0] == deployment), None)
        if trouble is not None:
            left.remove(trouble)
        why_not.append(trouble[1] if trouble is not None else "")
    return why_not


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds * 1000, 2)
