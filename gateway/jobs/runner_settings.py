"""How a process runs jobs. Plain data."""

from dataclasses import dataclass, field

from gateway.jobs.output import OutputSettings
from gateway.jobs.runs import RetrySettings


@dataclass(frozen=True, slots=True)
class RunnerSettings:
    """How jobs are run."""

    lease_s: float = 30.0
    poll_s: float = 2.0
    """Between two looks for jobs of other processes, when there was nothing for long."""
    busy_poll_s: float = 1.0
    """The same while jobs wait or run; and how soon a cancelled job ends."""
    gap_s: float = 0.02
    """Between two looks however many slots come free."""
    at_once: int = 1000
    """Jobs that this process runs at once at the most."""
    tenant_at_once: int | None = None
    """Jobs of a tenant that all processes run at once."""
    retry: RetrySettings = field(default_factory=RetrySettings)
    output: OutputSettings = field(default_factory=OutputSettings)
