"""What takes messages of queues and sends replies in one gateway process."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping

from prometheus_client import CollectorRegistry

from gateway.auth.jobs import JobKeys
from gateway.auth.keys import KeyRing
from gateway.domain.queues import QueueKind
from gateway.domain.request import Principal
from gateway.jobs.live_answer import FollowRun
from gateway.jobs.output_reader import OutputReader
from gateway.jobs.queues.intake import WAIT_S, IntakeSettings, QueueIntake
from gateway.jobs.queues.messages import MessageRules
from gateway.jobs.queues.metrics import QueueMetrics
from gateway.jobs.queues.replies import ReplyDeliverer
from gateway.jobs.queues.source import Source
from gateway.jobs.service import JobService
from gateway.runtime.config import ConfigError
from gateway.runtime.config.queues import QueueTable
from gateway.storage import Store


class QueueParts:
    """Of all queues in the settings."""

    def __init__(
        self,
        tables: list[QueueTable],
        store: Store,
        jobs: JobService,
        answers: OutputReader,
        ring: KeyRing,
        registry: CollectorRegistry,
    ) -> None:
        """Raises ConfigError for a queue whose library is missing, or whose URL cannot be used."""
        metrics = QueueMetrics(registry)
        self._sources = {table.name: make_source(table) for table in tables}
        self._intakes = [
            QueueIntake(
                self._sources[table.name],
                MessageRules(table.name, table.path, table.model, table.message_bytes),
                jobs,
                _principal(store, JobKeys(ring), table.key),
                store.queue_jobs.queued,
                metrics,
                IntakeSettings(table.prefetch, wait_s=_WAIT_S.get(table.kind, WAIT_S)),
                wall=jobs.wall,
            )
            for table in tables
        ]
        self._replies = ReplyDeliverer(
            self._sources,
            store.queue_jobs,
            store.jobs.get_many,
            answers,
            {table.name: table.reply_bytes for table in tables},
            metrics,
            stream_s={table.name: table.stream_s for table in tables},
            wall=jobs.wall,
        )

    @property
    def follow(self) -> FollowRun:
        """Who passes on the answers of this process's runs."""
        return self._replies.live.follow

    async def run(self) -> None:
        """Take messages and send replies until this is cancelled."""
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._replies.run())
                for intake in self._intakes:
                    tasks.create_task(intake.run())
        finally:
            for source in self._sources.values():
                await source.close()


def make_source(table: QueueTable) -> Source:
    """Connects to nothing yet. Raises ConfigError."""
    try:
        return _SOURCES[table.kind](table, table.url.get_secret_value())
    except ImportError as error:
        raise ConfigError(
            f"jobs.queues: {table.name} needs a library ({error}): "
            f"pip install 'trunkline[{_EXTRAS.get(table.kind, table.kind)}]'"
        ) from error
    except ValueError as error:
        raise ConfigError(f"jobs.queues: the url of {table.name} cannot be used: {error}") from error


def _redis_stream(table: QueueTable, url: str) -> Source:
    from gateway.jobs.queues.redis_stream import RedisStreamSource

    return RedisStreamSource(url, table.queue, table.group, table.dead_letters)


def _redis_list(table: QueueTable, url: str) -> Source:
    from gateway.jobs.queues.redis_list import RedisListSource

    return RedisListSource(url, table.queue, table.dead_letters)


def _rabbitmq(table: QueueTable, url: str) -> Source:
    from gateway.jobs.queues.rabbitmq import RabbitSource

    return RabbitSource(url, table.queue, table.dead_letters)


def _sqs(table: QueueTable, url: str) -> Source:
    from gateway.jobs.queues.sqs import SqsSource

    return SqsSource(url, table.queue, table.dead_letters)


def _pubsub(table: QueueTable, url: str) -> Source:
    from gateway.jobs.queues.pubsub import PubSubSource

    return PubSubSource(url, table.queue, table.dead_letters)


_SOURCES: Mapping[QueueKind, Callable[[QueueTable, str], Source]] = {
    QueueKind.REDIS_STREAM: _redis_stream,
    QueueKind.REDIS_LIST: _redis_list,
    QueueKind.RABBITMQ: _rabbitmq,
    QueueKind.SQS: _sqs,
    QueueKind.PUBSUB: _pubsub,
}
_EXTRAS = {QueueKind.REDIS_STREAM: "redis", QueueKind.REDIS_LIST: "redis"}
"""Whose names are not those of their kinds."""
_WAIT_S = {QueueKind.SQS: 20.0, QueueKind.PUBSUB: 20.0}
"""For messages, where each request for them costs something."""


def _principal(store: Store, keys: JobKeys, name: str) -> Callable[[], Awaitable[Principal]]:
    """Whose key has this name, by what the store says when it is asked."""

    async def identify() -> Principal:
        key = await asyncio.to_thread(store.keys.get, name)
        return await keys.identify(key.id)

    return identify
