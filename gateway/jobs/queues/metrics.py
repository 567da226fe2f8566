"""What is counted of queues, by each process."""

from prometheus_client import CollectorRegistry

from gateway.observability.metric_table import MetricTable, counter, gauge


class QueueMetrics(MetricTable):
    """In a registry of the gateway's, or one of its own. Sources are named in the settings, so they need no
    bound."""

    messages = counter(
        "trunkline_queue_messages", "Messages taken from queues, by what came of them.", "source", "outcome"
    )
    """``submitted``, ``repeated`` (its job was there already), ``rejected`` (a dead letter)."""
    replies = counter("trunkline_queue_replies", "Replies to messages of queues.", "source", "outcome")
    """``sent``, ``retried`` (another attempt follows), ``failed`` (none does)."""
    away = gauge("trunkline_queue_away", "Queues whose broker does not answer: 1 while it is so.", "source")

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        self.registry = registry or CollectorRegistry()
        super().__init__(self.registry)
