"""A queue's settings fit together."""

from typing import Any

import pytest
from pydantic import ValidationError

from gateway.runtime.config.jobs import JobsTable
from gateway.runtime.config.queues import QueueTable

STREAM: dict[str, Any] = {
    "name": "orders",
    "kind": "redis-stream",
    "url": "redis://:secret@h/0",
    "queue": "prompts",
    "key": "k",
}


def test_dead_letters_lie_beside_the_queue() -> None:
    table = QueueTable(**STREAM)
    assert (table.dead_letters, table.group, table.path) == (
        "prompts.dead",
        "trunkline",
        "/v1/chat/completions",
    )
    assert "secret" not in repr(table)
    assert QueueTable(**STREAM | {"dead_letter": "grave"}).dead_letters == "grave"


@pytest.mark.parametrize(
    ("kind", "url", "queue", "dead_letters"),
    [
        ("sqs", "sqs://eu-central-1", "prompts", "prompts-dead"),
        ("sqs", "sqs://eu-central-1", "prompts.fifo", "prompts-dead.fifo"),
        (
            "sqs",
            "https://h",
            "https://h/123456789012/prompts.fifo",
            "https://h/123456789012/prompts-dead.fifo",
        ),
        ("pubsub", "pubsub://p", "prompts", "prompts.dead"),
        ("pubsub", "pubsub+insecure://h:1/p", "projects/q/subscriptions/prompts", "prompts.dead"),
    ],
)
def test_dead_letters_have_names_that_their_broker_takes(
    kind: str, url: str, queue: str, dead_letters: str
) -> None:
    table = QueueTable(**STREAM | {"kind": kind, "url": url, "queue": queue})
    assert table.dead_letters == dead_letters


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"url": "amqp://h"}, "begins with redis://"),
        ({"kind": "rabbitmq"}, "begins with amqp://"),
        ({"kind": "kafka"}, "redis-stream"),
        ({"dead_letter": "prompts"}, "queue itself"),
        ({"name": "No Name"}, "pattern"),
        ({"path": "v1"}, "pattern"),
        ({"prefetch": 0}, "greater"),
        ({"stream_s": -1.0}, "greater"),
        ({"kind": "sqs"}, "begins with sqs://"),
        ({"kind": "pubsub"}, "begins with pubsub://"),
    ],
)
def test_what_does_not_fit_is_refused(change: dict[str, Any], said: str) -> None:
    with pytest.raises(ValidationError, match=said):
        QueueTable(**STREAM | change)


def test_two_queues_have_two_names() -> None:
    with pytest.raises(ValidationError, match="one name"):
        JobsTable(queues=[QueueTable(**STREAM), QueueTable(**STREAM)])
