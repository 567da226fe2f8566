"""What the audit log says of a finished request: who asked, where it ran and why, and what it used."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from gateway.audit.records import Entry


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
    tokens: tuple[int, int, int] | None
    """Prompt, answer, and of the prompt what was cached."""
    gpu_s: float | None
    cost: float | None

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
        "gpu_s": None if request.gpu_s is None else round(request.gpu_s, 6),
        "cost": None if request.cost is None else round(request.cost, 9),
    }
    found |= {name: value for name, value in optional.items() if value is not None}
    if request.deployments:
        found["ran"] = _ran(request.deployments, request.troubles)
    if request.tokens is not None:
        found["tokens"] = dict(zip(("in", "out", "cached"), request.tokens, strict=True))
    return found


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
