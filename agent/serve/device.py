"""The process that computes on one device: its life, what it was given, and how large its batches may be."""

import asyncio
import itertools
import logging
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Protocol

from agent.engines.process import EngineEnd, RestartPolicy
from agent.serve.child import Launch, ModelChild, Scratch, one_life
from agent.serve.messages import (
    BatchDone,
    DropOrder,
    ModelFacts,
    ModelFault,
    Outputs,
    PredictOrder,
    ProgressReport,
)
from agent.serve.parcels import Parcel

_log = logging.getLogger("model")

AHEAD = 2
"""Batches that a process has at once: one that it computes, and a full one that comes next, so that the
device does not wait for it."""

_batches = itertools.count(1)


class DeviceStatus(StrEnum):
    LOADING = "loading"
    READY = "ready"
    FAILED = "failed"


@dataclass(slots=True)
class SentBatch:
    """What a process was given and has not finished. ``left`` are the items without a whole result."""

    number: int
    left: dict[int, Parcel] = field(default_factory=dict)
    size: int = 0
    begun_s: float = 0.0
    """When no batch was before it any more, on the event loop's clock."""


class BatchEvents(Protocol):
    """Is told what becomes of batches."""

    def on_outputs(self, device: "DeviceRunner", said: Outputs) -> None: ...
    def on_batch_done(self, device: "DeviceRunner", batch: SentBatch, fault: ModelFault | None) -> None:
        """A batch is over; ``fault`` concerns what is left of it."""

    def on_progress(self, report: ProgressReport) -> None: ...
    def on_device_change(self, device: "DeviceRunner") -> None:
        """Its state is another one, or it can take a batch."""


class DeviceRunner:
    """Keeps one process for ``device``. Belongs to one event loop."""

    def __init__(
        self,
        device: str,
        launch: Launch,
        scratch: Scratch,
        events: BatchEvents,
        restarts: RestartPolicy,
    ) -> None:
        self.device = device
        self.status = DeviceStatus.LOADING
        self.reason = ""
        self.facts: ModelFacts | None = None
        """What the model said last; there since it first could compute."""
        self.limit = 1
        """Most items in a batch: the model's own number, or less since memory ran out."""
        self._learned_limit: int | None = None
        self.restarted = 0
        self.back_in_s = 0.0
        """When it is started again, from its failure on; infinity: not soon."""
        self.end: EngineEnd | None = None
        """How its last process ended, when none is started again."""
        self._launch = launch
        self._scratch = scratch
        self._events = events
        self._restarts = restarts
        self._child: ModelChild | None = None
        self._sent: deque[SentBatch] = deque()
        self._timer: asyncio.TimerHandle | None = None
        self._crashes = 0
        self._late = ""
        """Why we ended the process, if the batch that it computed took too long."""
        self._late_batch = 0
        """That batch's number. It may have been whole all the same before the process ended."""

    @property
    def computing(self) -> bool:
        return bool(self._sent)

    @property
    def running(self) -> int:
        """Items that it was given."""
        return sum(len(batch.left) for batch in self._sent)

    @property
    def idle(self) -> bool:
        return self._child is not None and not self._sent

    @property
    def takes_ahead(self) -> bool:
        """It computes, and can be given a full batch to compute next."""
        return self._child is not None and 0 < len(self._sent) < AHEAD

    def send(self, items: Sequence[tuple[int, Parcel]]) -> None:
        """Have a batch computed. To be called when it is :attr:`idle`, or :attr:`takes_ahead`."""
        assert self._child is not None
        batch = SentBatch(next(_batches), dict(items), len(items))
        self._sent.append(batch)
        self._child.send(PredictOrder(batch.number, tuple(items)))
        if len(self._sent) == 1:
            batch.begun_s = asyncio.get_running_loop().time()
            self._watch()

    def drop(self, item: int) -> None:
        """Nobody waits for this item any more."""
        if self._child is not None:
            self._child.send(DropOrder(item))

    def halve(self, size: int) -> None:
        """Memory ran out with ``size`` items: so many are not computed together again."""
        self._learned_limit = max(1, min(size // 2, self.limit))
        self.limit = self._learned_limit
        _log.warning("memory ran out on %s with %d items; batches now have %d", self.device, size, self.limit)

    async def run(self) -> None:
        """Keep a process running; returns with :attr:`end` set when there is no point in starting it
        again."""
        self.end = None
        while True:
            self._late, self.back_in_s = "", 0.0
            self._set(DeviceStatus.LOADING, "the model is being loaded")
            try:
                life = await one_life(self._launch, self.device, self._scratch, self._on_ready, self._take)
            finally:
                self._child = None
                if self._timer is not None:
                    self._timer.cancel()
            served, reason = life.served_s > 0, self._late or life.end.reason
            self._crashes = 1 if life.served_s >= self._restarts.healthy_s else self._crashes + 1
            self._fail_what_was_sent(reason)
            first = self.facts is None
            if life.end.unrecoverable or first or self._crashes > self._restarts.most:
                self.give_up(reason, unrecoverable=life.end.unrecoverable)
                return
            delay_s = self._restarts.delay_s(self._crashes, served=served)
            self.restarted += 1
            self.back_in_s = delay_s
            _log.error("the model's process for %s: %s (again in %g s)", self.device, reason, delay_s)
            self._set(DeviceStatus.FAILED, f"{reason} (again in {delay_s:g} s)")
            await asyncio.sleep(delay_s)

    def give_up(self, reason: str, *, unrecoverable: bool = False) -> None:
        """No process is started again before :meth:`run` is called again."""
        self.end, self.back_in_s, self._crashes = EngineEnd(reason, unrecoverable), float("inf"), 0
        self._fail_what_was_sent(reason)
        self._set(DeviceStatus.FAILED, reason)

    def _on_ready(self, child: ModelChild, facts: ModelFacts) -> None:
        self._child, self.facts = child, facts
        self.limit = min(facts.max_batch, self._learned_limit or facts.max_batch)
        self._set(DeviceStatus.READY, "")

    def _take(self, said: Any) -> None:
        if isinstance(said, ProgressReport):
            self._events.on_progress(said)
        elif isinstance(said, Outputs):
            for _, output in said.outputs:
                self._scratch.adopt(output)
            self._watch()
            self._events.on_outputs(self, said)
        elif isinstance(said, BatchDone) and self._sent and self._sent[0].number == said.batch:
            batch = self._sent.popleft()
            if self._sent:
                self._sent[0].begun_s = asyncio.get_running_loop().time()
            self._watch()
            if said.fault is None:
                self._crashes = 0
            self._events.on_batch_done(self, batch, said.fault)
            self._events.on_device_change(self)

    def settle(self, said: Outputs, item: int) -> None:
        """The item has its whole result."""
        for batch in self._sent:
            if batch.number == said.batch:
                batch.left.pop(item, None)

    def _watch(self) -> None:
        """The first batch has so much time from now on."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None
        if self._sent and self.facts is not None:
            self._timer = asyncio.get_running_loop().call_later(self.facts.timeout_s, self._out_of_time)

    def _out_of_time(self) -> None:
        assert self.facts is not None
        self._late = f"predict did not return within {self.facts.timeout_s:g} s"
        self._late_batch = self._sent[0].number
        _log.error("%s on %s; its process is ended", self._late, self.device)
        if self._child is not None:
            self._child.kill(self._late)

    def _fail_what_was_sent(self, reason: str) -> None:
        """The first batch is the likely cause; those after it were not begun."""
        sent, self._sent = list(self._sent), deque()
        for place, batch in enumerate(sent):
            begun = place == 0 and (not self._late or batch.number == self._late_batch)
            kind = ("late" if self._late else "crashed") if begun else "lost"
            self._events.on_batch_done(self, batch, ModelFault(kind, reason))

    def _set(self, status: DeviceStatus, reason: str) -> None:
        self.status, self.reason = status, reason
        self._events.on_device_change(self)
