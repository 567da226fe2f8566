"""What a simulation found, in memory that does not grow with the requests."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from gateway.tools.bench.tally import Histogram
from gateway.tools.simulate.inputs import Job

GOOD_TTFT_S = 2.0
GOOD_TPOT_S = 0.1
SHARES = {"p50": 0.5, "p95": 0.95, "p99": 0.99}


@dataclass(frozen=True, slots=True)
class Slo:
    """A request is good when its first token came within ``ttft_s`` and the others, on average, within
    ``tpot_s`` of each other."""

    ttft_s: float = GOOD_TTFT_S
    tpot_s: float = GOOD_TPOT_S


@dataclass(slots=True)
class PolicyTally:
    """Counts and durations of one policy's run; times as the client sees them."""

    slo: Slo
    requests: int = 0
    completed: int = 0
    rejected: int = 0
    good: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    preemptions: int = 0
    restarts: int = 0
    opens: int = 0
    """Requests that gateways sent to agents."""
    opens_refused: int = 0
    """Those for which there was no slot any more when they came."""
    demands: int = 0
    """How often gateways told an agent what waits."""
    idle_wanted_s: float = 0.0
    """Seconds of slots that nobody used while a request waited for each."""
    fairness: "Fairness" = field(default_factory=lambda: Fairness())
    ttft: Histogram = field(default_factory=Histogram)
    latency: Histogram = field(default_factory=Histogram)
    tpot: Histogram = field(default_factory=Histogram)
    queued: Histogram = field(default_factory=Histogram)
    """In the gateway, before the first slot."""

    def add_completed(
        self, job: Job, ttft_s: float, latency_s: float, cached_tokens: int, queued_s: float
    ) -> None:
        """``job`` is over, ``latency_s`` after it arrived."""
        self.completed += 1
        self.queued.add(queued_s)
        self.input_tokens += job.input_tokens
        self.output_tokens += job.output_tokens
        self.cached_tokens += cached_tokens
        self.ttft.add(ttft_s)
        self.latency.add(latency_s)
        tpot_s = (latency_s - ttft_s) / (job.output_tokens - 1) if job.output_tokens > 1 else 0.0
        if job.output_tokens > 1:
            self.tpot.add(tpot_s)
        if ttft_s <= self.slo.ttft_s and tpot_s <= self.slo.tpot_s:
            self.good += 1


def variation(values: Sequence[float]) -> float:
    """Coefficient of variation: standard deviation over mean; 0 where the mean is not over 0."""
    mean = sum(values) / len(values)
    if mean <= 0:
        return 0.0
    return math.sqrt(sum((each - mean) ** 2 for each in values) / len(values)) / mean


class TimeWindows:
    """How unevenly devices are busy at a time: the mean variation within windows of time."""

    def __init__(self, devices: int) -> None:
        self._busy_s = [0.0] * devices
        self._sum = 0.0
        self._count = 0

    def end(self, busy_s: Sequence[float]) -> None:
        """A window is over; ``busy_s`` is of each device since the beginning. Idle windows do not count."""
        passed = [after - before for after, before in zip(busy_s, self._busy_s, strict=True)]
        self._busy_s = list(busy_s)
        if any(passed):
            self._sum += variation(passed)
            self._count += 1

    @property
    def variation(self) -> float:
        return self._sum / self._count if self._count else 0.0


class Fairness:
    """How evenly tenants are served that all want more than they get: Jain's index of the work that they
    were given within windows of time, 1 when it is the same. Only tenants count whose requests waited both
    when a window began and when it ended."""

    def __init__(self) -> None:
        self._work: dict[str, float] = {}
        self._waited: set[str] = set()
        self._sum = 0.0
        self._count = 0

    def served(self, tenant: str, work: float) -> None:
        """A request of ``tenant`` got a slot, or, below 0, lost it again."""
        self._work[tenant] = self._work.get(tenant, 0.0) + work

    def end(self, waiting: set[str]) -> None:
        """A window is over; requests of these tenants wait."""
        both = self._waited & waiting
        given = [max(0.0, self._work.get(tenant, 0.0)) for tenant in both]
        if len(both) > 1 and any(given):
            self._sum += sum(given) ** 2 / (len(given) * sum(each * each for each in given))
            self._count += 1
        self._work, self._waited = {}, waiting

    @property
    def index(self) -> float | None:
        """The mean of all windows; None where no two tenants waited."""
        return self._sum / self._count if self._count else None


@dataclass(frozen=True, slots=True)
class Figures:
    """One policy's result. Percentiles are None where nothing was completed."""

    tally: PolicyTally
    span_s: float
    """From the first arrival to the last."""
    ended_s: float
    """When the last request was over."""
    busy_shares: Sequence[float]
    """The share of the span in which each device computed."""
    window_cv: float
    """See :class:`TimeWindows`."""
    gateways: int = 1

    @property
    def utilisation(self) -> float:
        return sum(self.busy_shares) / len(self.busy_shares)

    @property
    def utilisation_cv(self) -> float:
        """The variation of all devices' utilisation over the whole span."""
        return variation(self.busy_shares)

    def as_json(self) -> dict[str, Any]:
        """The shape that scripts rely on (the members up to ``prefix_hit_rate``), and more."""
        tally = self.tally
        span_s = self.span_s or self.ended_s or 1.0
        return {
            "requests": tally.requests,
            "completed": tally.completed,
            "rejected": tally.rejected,
            "ttft_s": percentiles(tally.ttft),
            "latency_s": percentiles(tally.latency),
            "utilisation_cv": self.utilisation_cv,
            "goodput_rps": tally.good / span_s,
            "prefix_hit_rate": tally.cached_tokens / tally.input_tokens if tally.input_tokens else 0.0,
            "tpot_s": percentiles(tally.tpot),
            "queued_s": percentiles(tally.queued),
            "good": tally.good,
            "utilisation": self.utilisation,
            "utilisation_window_cv": self.window_cv,
            "output_tokens_per_s": tally.output_tokens / max(self.ended_s, 1e-9),
            "preemptions": tally.preemptions,
            "restarts": tally.restarts,
            "span_s": self.span_s,
            "ended_s": self.ended_s,
            "gateways": self.gateways,
            "opens_refused": tally.opens_refused / max(1, tally.opens),
            "demands": tally.demands,
            "idle_while_wanted_s": tally.idle_wanted_s,
            "fairness": tally.fairness.index,
        }


def percentiles(histogram: Histogram) -> dict[str, float | None]:
    """p50, p95 and p99 in seconds."""
    if not histogram.count:
        return dict.fromkeys(SHARES)
    return {name: histogram.percentile_s(share) for name, share in SHARES.items()}
