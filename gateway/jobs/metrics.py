"""What is counted of jobs, by each process."""

from prometheus_client import CollectorRegistry, Gauge, Histogram

from gateway.observability.metric_table import MetricTable, counter

_WAITS_S = (0.1, 0.5, 1, 5, 15, 60, 300, 1800, 7200, 43_200, 172_800)


class JobMetrics(MetricTable):
    """In a registry of the gateway's, or one of its own."""

    ended = counter("trunkline_jobs_ended", "Jobs that this process brought to their end.", "state")
    attempts = counter("trunkline_job_attempts", "Runs of jobs by how they ended.", "end")

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        registry = registry or CollectorRegistry()
        super().__init__(registry)
        self.queued = Gauge(
            "trunkline_jobs_queued", "Jobs that wait in the store for any process.", registry=registry
        )
        self.running = Gauge("trunkline_jobs_running", "Jobs that this process runs.", registry=registry)
        self.claim_s = Histogram(
            "trunkline_job_claim_seconds",
            "From the moment at which a job could begin to its claim.",
            buckets=_WAITS_S,
            registry=registry,
        )
