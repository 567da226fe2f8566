"""What dashboards and alerts rely on: every metric's name, type, help, labels and buckets, and which call
counts in which of them."""

from pathlib import Path

from gateway.observability.metrics import Metrics
from shared.protocol.batch_sizes import BatchSizes
from shared.protocol.limits import BATCH_SIZES
from shared.protocol.messages import Usage

RECORDED = Path(__file__).parent / "recorded" / "exposition.txt"
"""A change to it is a change to the interface, to be told in the changelog."""

OF_THE_MACHINE = ("process_", "trunkline_build_info")


def everything_counted() -> Metrics:
    metrics = Metrics()
    metrics.know_model("m")
    metrics.tenant_class = lambda tenant: "paying"
    metrics.request_finished("chat", "m", 200, 0.5, "standard", "acme", "gpu")
    metrics.computed("m", BatchSizes((0, 1, *(0,) * (len(BATCH_SIZES) - 1)), 2))
    metrics.streamed("m", 0.25, 2.0, 5, "standard")
    metrics.queued("m", "standard", 0.1)
    metrics.first_byte("m", 0.2)
    metrics.refused("m", "queue_full")
    metrics.retried("m", "refused")
    metrics.retry_refused("m")
    metrics.failed_over("m", "lost")
    metrics.continued("m", "done")
    metrics.hedges("m", "started")
    metrics.hedges("m", "won")
    metrics.preempted("m", "batch")
    metrics.progress_told("m")
    metrics.progress_delivery_s("m", 0.004)
    metrics.loaded("m", 12.0)
    metrics.loads("m", "failed")
    metrics.unloaded("m")
    metrics.held("m")
    metrics.circuit_opened("m", "unreachable")
    metrics.ejected("m")
    metrics.broken("m", "session_lost")
    metrics.used("m", Usage(prompt_tokens=1, completion_tokens=2, cached_tokens=3))
    metrics.claim_refused("not_allowed")
    metrics.tunnel("accepted")
    metrics.machine_trouble("memory", True)
    metrics.loop_blocked(0.5)
    return metrics


async def test_names_types_helps_labels_and_buckets_are_those_recorded() -> None:
    lines = (await everything_counted().render()).decode().splitlines()
    told = [
        line
        for line in lines
        if not line.removeprefix("# HELP ").removeprefix("# TYPE ").startswith(OF_THE_MACHINE)
    ]
    assert told == RECORDED.read_text().splitlines()
