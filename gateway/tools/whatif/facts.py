"""What is replayed of a request that is over: facts, and never content.

Facts come from lines of the audit log (:func:`gateway.observability.audit.facts_of`), from decision records
in memory, or from a file of facts that were exported. Their members are fixed, and all of them are numbers
but for the names of a model, a deployment, a tier and a tenant; whose tenant it is can be hidden.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field

from gateway.domain.request import Tier

Outcome = Literal["answered", "refused", "failed", "cancelled"]
"""What became of a request."""

CANCELLED = 499

REFUSED = frozenset(
    (
        "queue_full",
        "queue_timeout",
        "deadline_exceeded",
        "overloaded",
        "buffers_full",
        "engine_busy",
        "no_deployment",
        "shutting_down",
    )
)
"""Codes of errors with which a gateway refuses what it has no room for just then."""

OF_LIMITS = frozenset(("rate_limit_exceeded", "insufficient_quota"))
"""Codes of errors of requests that limits of their key or tenant refuse: they ask for nothing."""

LEFT_OUT: Mapping[str, tuple[str, str]] = {
    "limits": (
        "was refused for the limits of its key or tenant",
        "were refused for the limits of their key or tenant",
    ),
    "client": ("was refused for what its client had sent", "were refused for what their client had sent"),
    "reused": (
        "was answered without an engine, from answers that are kept",
        "were answered without an engine, from answers that are kept",
    ),
    "unreadable": ("is recorded in a way that cannot be read", "are recorded in a way that cannot be read"),
    "earlier": ("came before the time that is replayed", "came before the time that is replayed"),
    "no_tokens": (
        "is for a model whose engines count no tokens",
        "are for models whose engines count no tokens",
    ),
    "not_served": ("is for a model that nothing serves now", "are for models that nothing serves now"),
}
"""Why one request, or several, are not replayed, by code."""


def why_left_out(code: str, count: int) -> str:
    """What :data:`LEFT_OUT` says of ``count`` requests; a code that is not known says itself."""
    one, several = LEFT_OUT.get(code, (code, code))
    return one if count == 1 else several


_Seconds = Annotated[float, Field(ge=0, le=1e9, allow_inf_nan=False)]
_Time = Annotated[float, Field(ge=0, le=1e12, allow_inf_nan=False)]
_Tokens = Annotated[int, Field(ge=0, le=10_000_000)]
_Name = Annotated[str, Field(max_length=1024)]


@dataclass(frozen=True, slots=True)
class ReplayFact:
    """One request. Durations count from its arrival."""

    __pydantic_config__ = ConfigDict(extra="forbid", allow_inf_nan=False)

    at_s: _Time
    """When it arrived, in seconds since 1970."""
    model: _Name
    tier: Tier
    tenant: _Name
    outcome: Outcome
    total_s: _Seconds
    first_s: _Seconds | None = None
    """When the first of its answer went out; of an answer in one piece that is its end."""
    queued_s: _Seconds | None = None
    tokens_in: _Tokens | None = None
    """As its engine counted; None: it did not."""
    tokens_out: _Tokens | None = None
    tokens_cached: _Tokens = 0
    """Of the prompt, as far as the engine says."""
    deployment: _Name = ""
    """The last one that had it."""
    gpu_s: _Seconds = 0.0

    @property
    def whole(self) -> bool:
        """Its answer came in one piece, or as good as: its first byte was near its end."""
        return self.first_s is None or self.first_s > _WHOLE * self.total_s


_WHOLE = 0.95


class NotReplayed(Exception):
    """A record that is not replayed; ``code`` is of :data:`LEFT_OUT`."""

    def __init__(self, code: str) -> None:
        super().__init__(code)
        self.code = code


def fact_of_line(record: Mapping[str, Any]) -> ReplayFact:
    """The fact in a line of the audit log, of the kind ``request``. Raises NotReplayed."""
    try:
        ended_s = datetime.fromisoformat(record["at"]).timestamp()
        total_s = record["total_ms"] / 1000
        ran = record.get("ran") or ()
        return ReplayFact(
            at_s=ended_s - total_s,
            model=record["model"],
            tier=Tier(record.get("tier", Tier.STANDARD)),
            tenant=record["tenant"],
            outcome=_outcome(int(record["status"]), record.get("error"), bool(ran)),
            total_s=total_s,
            first_s=_seconds(record.get("first_byte_ms")),
            queued_s=_seconds(record.get("queue_ms")),
            tokens_in=record.get("tokens_in"),
            tokens_out=record.get("tokens_out"),
            tokens_cached=record.get("tokens_cached", 0),
            deployment=ran[-1] if ran else "",
            gpu_s=record.get("gpu_s", 0.0),
        )
    except (KeyError, TypeError, ValueError):
        raise NotReplayed("unreadable") from None


def _seconds(ms: float | None) -> float | None:
    return None if ms is None else ms / 1000


def _outcome(status: int, error: str | None, ran: bool) -> Outcome:
    """Raises NotReplayed for what never asked for a slot."""
    if status < 400:
        if not ran:
            raise NotReplayed("reused")
        return "answered"
    if status == CANCELLED:
        return "cancelled"
    if error in REFUSED:
        return "refused"
    if error in OF_LIMITS:
        raise NotReplayed("limits")
    if status < 500:
        raise NotReplayed("client")
    return "failed"


def as_row(fact: ReplayFact) -> dict[str, Any]:
    """For a file: what is not known is left out."""
    found = asdict(fact)
    return {name: value for name, value in found.items() if value not in (None, "") and value != 0}


def without_tenants(
    facts: Iterable[ReplayFact], weights: Mapping[str, float]
) -> tuple[list[ReplayFact], dict[str, float]]:
    """The same with numbers for tenants, the busiest first, in the facts and in their weights."""
    known = list(facts)
    counts = Counter(fact.tenant for fact in known)
    names = {tenant: f"t{number}" for number, (tenant, _) in enumerate(counts.most_common(), 1)}
    hidden = [replace(fact, tenant=names[fact.tenant]) for fact in known]
    return hidden, {names[tenant]: weight for tenant, weight in weights.items() if tenant in names}
