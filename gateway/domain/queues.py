"""Queues that feed jobs: what is kept of a message until its reply was sent. Plain data."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum


@dataclass(frozen=True, slots=True)
class QueueOrigin:
    """Which message a job was made of, and who hears of its end."""

    source: str
    """The queue's name in the settings."""
    message_id: str
    reply_to: str | None = None
    """A stream, a list, a queue or a topic of the same broker; None: nobody hears of it."""
    stream: bool = False
    """The answer is sent while it is written."""


@dataclass(frozen=True, slots=True)
class ReplyPlan:
    """The reply that was begun last. It is noted before it is sent, so that it is sent again just so."""

    sequence: int = 0
    """From 1 on; 0: none was."""
    since: int = 0
    start: int = 0
    stop: int = 0
    """Which bytes of the answer it has (:class:`gateway.jobs.object_names.OutputPosition`). ``start`` and
    ``stop`` are 0 where it only says that the answer began anew."""
    is_sent: bool = True
    """It has reached the broker for certain. Where it has not, and ``start`` is ``stop``, an answer is sent
    as it is written: its bytes before ``stop`` have reached the broker, more may have, under numbers below
    ``sequence``."""

    @property
    def sent_offset(self) -> int:
        """So many bytes of the answer have reached the broker for certain."""
        return self.stop if self.is_sent else self.start


@dataclass(frozen=True, slots=True)
class PendingReply:
    """What is still to be said of a job. Times are seconds since 1970."""

    number: int
    job_id: str
    origin: QueueOrigin
    plan: ReplyPlan
    attempts: int
    """In a row that failed."""
    generation: int
    """Rises with each claim: only who made the last one may change anything."""
    failing_since_s: float | None
    """Since when they have failed."""


class QueueKind(StrEnum):
    """What a queue is, and whose."""

    REDIS_STREAM = "redis-stream"
    REDIS_LIST = "redis-list"
    RABBITMQ = "rabbitmq"
    SQS = "sqs"
    PUBSUB = "pubsub"


_REDIS = ("redis", "rediss", "valkey", "valkeys", "unix")
QUEUE_SCHEMES: Mapping[QueueKind, tuple[str, ...]] = {
    QueueKind.REDIS_STREAM: _REDIS,
    QueueKind.REDIS_LIST: _REDIS,
    QueueKind.RABBITMQ: ("amqp", "amqps"),
    QueueKind.SQS: ("sqs", "https", "http"),
    QueueKind.PUBSUB: ("pubsub", "pubsub+insecure"),
}
"""Of the URLs of their brokers."""
