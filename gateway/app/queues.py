"""What takes messages of queues and sends replies in one gateway process."""

import asyncio
from collections.abc import Awaitable, Callable

from prometheus_client import CollectorRegistry

from gateway.auth.jobs import JobKeys
from gateway.auth.keys import KeyRing
from gateway.domain.queues import QueueKind
from gateway.domain.request import Principal
from gateway.jobs.output import OutputReader
from gateway.jobs.queues.intake import IntakeSettings, QueueIntake
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
                IntakeSettings(table.prefetch),
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
            wall=jobs.wall,
        )

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
    url = table.url.get_secret_value()
    extra = "rabbitmq" if table.kind is QueueKind.RABBITMQ else "redis"
    try:
        if table.kind is QueueKind.REDIS_STREAM:
            from gateway.jobs.queues.redis_stream import RedisStreamSource

            return RedisStreamSource(url, table.queue, table.group, table.dead_letters)
        if table.kind is QueueKind.REDIS_LIST:
            from gateway.jobs.queues.redis_list import RedisListSource

            return RedisListSource(url, table.queue, table.dead_letters)
        from gateway.jobs.queues.rabbitmq import RabbitSource

        return RabbitSource(url, table.queue, table.dead_letters)
    except ImportError as error:
        raise ConfigError(
            f"jobs.queues: {table.name} needs a library ({error}): pip install 'trunkline[{extra}]'"
        ) from error
    except ValueError as error:
        raise ConfigError(f"jobs.queues: the url of {table.name} cannot be used: {error}") from error


def _principal(store: Store, keys: JobKeys, name: str) -> Callable[[], Awaitable[Principal]]:
    """Whose key has this name, by what the store says when it is asked."""

    async def identify() -> Principal:
        key = await asyncio.to_thread(store.keys.get, name)
        return await keys.identify(key.id)

    return identify
