"""What takes messages of queues and sends replies in one gateway process."""

import asyncio
import secrets
from collections.abc import Awaitable, Callable, Mapping

import structlog
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
from gateway.jobs.queues.source import OwnedSource, Source
from gateway.jobs.service import JobService
from gateway.runtime.config import ConfigError
from gateway.runtime.config.queues import QueueTable
from gateway.storage import Store
from gateway.storage.errors import StateError

_log = structlog.get_logger(__name__)


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
        process: str = "gateway",
    ) -> None:
        """``process`` names this one in the store, and is the same when it is started again.

        Raises ConfigError for a queue whose library is missing, or whose URL cannot be used.
        """
        metrics = QueueMetrics(registry)
        self._store, self._process, self._owner = store, process, secrets.token_hex(8)
        self._sources = {table.name: make_source(table, self._owner) for table in tables}
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
            process=process,
            wall=jobs.wall,
        )

    @property
    def follow(self) -> FollowRun:
        """Who passes on the answers of this process's runs."""
        return self._replies.live.follow

    async def run(self) -> None:
        """Take messages and send replies until this is cancelled."""
        try:
            await self._succeed()
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._replies.run())
                for intake in self._intakes:
                    tasks.create_task(intake.run())
        finally:
            for source in self._sources.values():
                await source.close()

    async def _succeed(self) -> None:
        """What an earlier run of this process took, which was killed, is this one's at once. It is called
        otherwise than that one: two gateways whose states are copies of one never hold messages together."""
        try:
            earlier = await asyncio.to_thread(self._store.queue_jobs.begin, self._process, self._owner)
        except StateError as error:  # what it held comes free by itself
            _log.warning("queue_owner_not_noted", error=str(error))
            return
        if earlier is not None:
            for source in self._sources.values():
                if isinstance(source, OwnedSource):
                    source.succeed(earlier)


def make_source(table: QueueTable, owner: str | None = None) -> Source:
    """Connects to nothing yet. ``owner``: what no other process is called. Raises ConfigError."""
    try:
        return _SOURCES[table.kind](table, table.url.get_secret_value(), owner)
    except ImportError as error:
        raise ConfigError(
            f"jobs.queues: {table.name} needs a library ({error}): "
            f"pip install 'trunkline[{EXTRAS.get(table.kind, table.kind)}]'"
        ) from error
    except ValueError as error:
        raise ConfigError(f"jobs.queues: the url of {table.name} cannot be used: {error}") from error


def _redis_stream(table: QueueTable, url: str, owner: str | None) -> Source:
    from gateway.jobs.queues.redis_stream import RedisStreamSource

    return RedisStreamSource(url, table.queue, table.group, table.dead_letters, owner=owner)


def _redis_list(table: QueueTable, url: str, owner: str | None) -> Source:
    from gateway.jobs.queues.redis_list import RedisListSource

    return RedisListSource(url, table.queue, table.dead_letters, owner=owner)


def _rabbitmq(table: QueueTable, url: str, owner: str | None) -> Source:
    from gateway.jobs.queues.rabbitmq import RabbitSource

    return RabbitSource(url, table.queue, table.dead_letters)


def _sqs(table: QueueTable, url: str, owner: str | None) -> Source:
    from gateway.jobs.queues.sqs import SqsSource

    return SqsSource(url, table.queue, table.dead_letters)


def _pubsub(table: QueueTable, url: str, owner: str | None) -> Source:
    from gateway.jobs.queues.pubsub import PubSubSource

    return PubSubSource(url, table.queue, table.dead_letters)


_SOURCES: Mapping[QueueKind, Callable[[QueueTable, str, str | None], Source]] = {
    QueueKind.REDIS_STREAM: _redis_stream,
    QueueKind.REDIS_LIST: _redis_list,
    QueueKind.RABBITMQ: _rabbitmq,
    QueueKind.SQS: _sqs,
    QueueKind.PUBSUB: _pubsub,
}
EXTRAS = {QueueKind.REDIS_STREAM: "redis", QueueKind.REDIS_LIST: "redis"}
"""Whose names are not those of their kinds."""
_WAIT_S = {QueueKind.SQS: 20.0, QueueKind.PUBSUB: 20.0}
"""For messages, where each request for them costs something."""


def _principal(store: Store, keys: JobKeys, name: str) -> Callable[[], Awaitable[Principal]]:
    """Whose key has this name, by what the store says when it is asked."""

    async def identify() -> Principal:
        key = await asyncio.to_thread(store.keys.get, name)
        return await keys.identify(key.id)

    return identify
