"""What the audit log says of a finished request: who asked, where it ran and why, and what it used."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from gateway.audit.records import Entry
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
    tier: str | None
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
    }
    optional = {
        "error": request.error,
        "model": request.model,
        "alias": request.alias,
        "target": request.target or None,
        "version": request.version or None,
        "tier": request.tier,
        "queue_ms": _ms(request.queue_s),
        "first_byte_ms": _ms(request.first_byte_s),
        "total_ms": _ms(request.total_s),
        "gpu_s": round(request.gpu_s, 6) or None,
        "cost": round(_cost(request), 9) or None,
    }
    found |= {name: value for name, value in optional.items() if value is not None}
    if request.deployments:
        found["ran"] = _ran(request.deployments, request.troubles)
    usage = request.usage
    if usage is not None:
        tokens = {"in": usage.prompt_tokens, "out": usage.completion_tokens, "cached": usage.cached_tokens}
        found["tokens"] = tokens
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
    why = list(troubles or ())
    ran = []
    for deployment in deployments:
        reason = next((each for each in why if each[0] == deployment), None)
        if reason is not None:
            why.remove(reason)
        ran.append([deployment, reason[1] if reason is not None else ""])
    return ran


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds * 1000, 2)
