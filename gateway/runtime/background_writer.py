"""What a running gateway writes down behind its requests' backs, off the event loop."""

import asyncio
import time
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from math import inf
from typing import Any

import structlog

from gateway.fleet.model_index import ModelIndex
from gateway.quota.usage import UsageLedger
from gateway.storage.backup import Backup
from gateway.storage.errors import StateError
from gateway.storage.usage import Account, Amount
from shared.process.event_loop import wait_to_wake

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class BackgroundWriterSettings:
    max_models: int = 4096
    """Model names kept, as many as the registry remembers."""
    tick_s: float = 0.5
    """Between two writes, when there is something to write. With the time the disk takes this is less than
    the second that a crash may lose."""
    renew_s: float = 3600.0
    """How often it is written down again that a model is served."""
    backup_look_s: float = 0.9
    """How often it is looked whether a backup is due; while the database is deleted, every ``tick_s``."""
    backup_retry_s: float = 600.0
    """After a backup that could not be made."""


class BackgroundWriter:
    """Writes down what was used, every ``tick_s``, and which models are served, when they come and every
    ``renew_s``; sees that there is a backup.

    What cannot be written is tried again; that is logged once. Belongs to the event loop's thread.
    """

    def __init__(
        self,
        index: ModelIndex,
        note_models: Callable[[Mapping[str, float], Collection[str], float, int], None],
        ledger: UsageLedger,
        add_usage: Callable[[Mapping[Account, Amount], int], None],
        settings: BackgroundWriterSettings = BackgroundWriterSettings(),
        *,
        backup: Backup | None = None,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        """``note_models`` is :meth:`gateway.storage.usage.ModelStore.note` and ``add_usage``
        :meth:`gateway.storage.usage.UsageStore.add`: what failed is added again as it was, under the same
        number, for it may have been added after all."""
        self._index = index
        self._note_models = note_models
        self._ledger = ledger
        self._add_usage = add_usage
        self._batch: Mapping[Account, Amount] = {}
        """What is being added; empty: nothing."""
        self._batch_number = 0
        self._settings = settings
        self._backup = backup
        self._backup_due_s = -inf
        self._clock = clock
        self._wall = wall
        self._noted: dict[str, float] = {}
        """When it was last written that a model is served; no more than the index has."""
        self._models_due_s = -inf
        """Nothing need be written of any model before, unless one changes."""
        self._threads = ThreadPoolExecutor(2, thread_name_prefix="keep")
        """One writes, and does not wait for the other, which copies."""
        self._wake = asyncio.Event()
        self._stopping = False
        self._failing = False
        index.subscribe(self._changed)

    async def run(self) -> None:
        """Runs until :meth:`stop`; then writes what is left and returns, once no backup is being made."""
        async with asyncio.TaskGroup() as tasks:
            copying: asyncio.Task[None] | None = None
            while not self._stopping:
                await wait_to_wake(self._wake, self._settings.tick_s)
                await self.write()
                if self._backup_due and (copying is None or copying.done()):
                    copying = tasks.create_task(self.back_up())
            await self.write()
        if self._backup is not None:
            await self._copied(self._backup.last)
        if lost := [*self._batch.values(), *self._ledger.take().values()]:
            _log.error("usage_lost", requests=sum(amount.requests for amount in lost))
        self._threads.shutdown(wait=False)

    def stop(self) -> None:
        """Nothing more is to come."""
        self._stopping = True
        self._wake.set()

    async def write(self) -> None:
        """Write down what is due. Errors of the store are logged, not raised."""
        try:
            await self._write_usage()
            await self._write_models()
            if self._failing:
                _log.info("state_written_again")
            self._failing = False
        except StateError as error:
            if not self._failing:
                _log.error("state_not_written", error=str(error))
            self._failing = True

    async def back_up(self) -> None:
        """See that there is a backup, unless that was seen to just now. Errors of the store are logged, not
        raised, and it is tried again in ``backup_retry_s``."""
        now, backup = self._clock(), self._backup
        if backup is None or now < self._backup_due_s:
            return
        if not await self._copied(backup.keep, now):
            self._backup_due_s = now + self._settings.backup_retry_s
        elif not backup.deleted:
            self._backup_due_s = now + self._settings.backup_look_s

    @property
    def _backup_due(self) -> bool:
        return self._backup is not None and self._clock() >= self._backup_due_s

    async def _copied(self, copy: Callable[..., None], *arguments: float) -> bool:
        """Whether a step of the backup succeeded."""
        try:
            await self._in_thread(copy, *arguments)
        except StateError as error:
            _log.error("state_not_backed_up", error=str(error))
            return False
        return True

    async def _in_thread(self, work: Callable[..., None], *arguments: Any) -> None:
        await asyncio.get_running_loop().run_in_executor(self._threads, work, *arguments)

    async def _write_usage(self) -> None:
        """First what could not be added the last time, then what came since."""
        await self._add_batch()
        self._batch, self._batch_number = self._ledger.take(), self._batch_number + 1
        await self._add_batch()

    async def _add_batch(self) -> None:
        if self._batch:
            await self._in_thread(self._add_usage, self._batch, self._batch_number)
            self._batch = {}

    async def _write_models(self) -> None:
        now, age_s = self._clock(), self._settings.renew_s
        if now < self._models_due_s:
            return
        due = [
            name
            for name, record in self._index.models.items()
            if now - self._noted.get(name, -inf) >= age_s and record.serving
        ]
        if not due:
            served = (self._noted[name] for name, record in self._index.models.items() if record.serving)
            self._models_due_s = min(served, default=inf) + age_s
            return
        first_s = {name: float(self._index.models[name].created_s) for name in due}
        await self._in_thread(self._note_models, first_s, due, self._wall(), self._settings.max_models)
        self._noted = {name: at for name, at in self._noted.items() if name in self._index.models}
        self._noted |= dict.fromkeys(due, now)

    def _changed(self, model: str) -> None:
        """Called at every change of a deployment: a model seen for the first time is written at once."""
        noted_s = self._noted.get(model, -inf)
        self._models_due_s = min(self._models_due_s, noted_s + self._settings.renew_s)
        if noted_s == -inf and not self._failing and self._index.serving(model):
            self._wake.set()
