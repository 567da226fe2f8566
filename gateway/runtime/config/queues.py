"""What can be set of queues that feed jobs."""

from typing import Annotated
from urllib.parse import urlsplit

from pydantic import Field, SecretStr, model_validator

from gateway.domain.queues import QUEUE_SCHEMES, QueueKind
from gateway.runtime.config.cluster import SettingsTable

Place = Annotated[str, Field(min_length=1, max_length=255, pattern=r"^[^\x00-\x1f]+$")]


class QueueTable(SettingsTable):
    """A queue of messages, each of which is a job."""

    name: Annotated[str, Field(pattern="^[a-z0-9][a-z0-9._-]{0,62}$")]
    """What it is called in logs and metrics. Whoever changes it forgets the replies that are not sent yet."""
    kind: QueueKind
    url: Annotated[SecretStr, Field(min_length=1, max_length=2000)]
    """Of the broker: redis://HOST:6379/0, amqp://USER:PASSWORD@HOST:5672/VHOST, sqs://REGION,
    pubsub://PROJECT."""
    queue: Place
    """The stream, list, queue or subscription that messages are taken from."""
    group: Place = "trunkline"
    """The consumer group of a stream."""
    dead_letter: Place | None = None
    """Where messages go of which no job can be made; the default is the queue's name and .dead, with SQS
    -dead, before .fifo."""
    key: Annotated[str, Field(min_length=1, max_length=200)]
    """The name of the API key on whose account its jobs run."""
    path: Annotated[str, Field(pattern="^/", max_length=8192)] = "/v1/chat/completions"
    """What messages ask for that name neither path nor route."""
    model: Annotated[str | None, Field(min_length=1, max_length=500)] = None
    """Of bodies that name none."""
    prefetch: Annotated[int, Field(ge=1, le=1000)] = 16
    """So many of its jobs wait to begin; then nothing more is taken."""
    message_bytes: Annotated[int, Field(ge=1024, le=64 * 1024 * 1024)] = 8 * 1024 * 1024
    """Longest message."""
    reply_bytes: Annotated[int, Field(ge=0, le=16 * 1024 * 1024)] = 1024 * 1024
    """Longest answer that is in its reply; of a longer one the reply says where it is."""
    stream_s: Annotated[float, Field(ge=0.0, le=10.0)] = 0.02
    """For so long the bytes of an answer that is sent while it is written are gathered into one reply."""

    @model_validator(mode="after")
    def _fits_together(self) -> "QueueTable":
        scheme = urlsplit(self.url.get_secret_value()).scheme
        if scheme not in QUEUE_SCHEMES[self.kind]:
            raise ValueError(
                f"the url of {self.kind} begins with {'://, '.join(QUEUE_SCHEMES[self.kind])}://"
            )
        if self.dead_letter == self.queue:
            raise ValueError("dead letters cannot go to the queue itself")
        return self

    @property
    def dead_letters(self) -> str:
        """Where they go."""
        if self.dead_letter is not None:
            return self.dead_letter
        if self.kind is QueueKind.SQS:
            name = self.queue.removesuffix(".fifo")
            return f"{name}-dead{self.queue.removeprefix(name)}"
        if self.kind is QueueKind.PUBSUB:  # a topic, of the project that the URL names
            return f"{self.queue.rpartition('/')[2]}.dead"
        return f"{self.queue}.dead"
