"""A request's way through a model's processes: decoded, queued, computed, encoded.

What fails concerns as few as possible. When a batch of several fails, each of its items is computed once more
and alone, so that only those that fail by themselves get an error. When memory runs out, the batch is halved
and stays so. What has begun to be answered is not computed again.
"""

import asyncio
import itertools
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from agent.engines.admission import EngineAdmission
from agent.engines.process import EngineEnd, RestartPolicy
from agent.serve.batching import BatchQueue
from agent.serve.child import Launch, Scratch
from agent.serve.codec_pool import CodecPool
from agent.serve.computation import Computation
from agent.serve.device import DeviceRunner, DeviceStatus, SentBatch
from agent.serve.errors import NotReady
from agent.serve.messages import (
    ModelFacts,
    ModelFault,
    Outputs,
    ProgressReport,
)
from agent.serve.options import worker_count
from agent.serve.parcels import Parcel

_log = logging.getLogger("model")

RESTARTS = RestartPolicy(first_s=0.1)
"""A process that crashed is loaded again at once, as requests wait for it."""

PATIENCE_S = 2.0
"""Requests wait for a process that is started again within so long; otherwise they are refused, so that the
gateway sends them elsewhere."""

STREAM_OUTPUTS = 256
"""Outputs of one stream that may wait for its client. The items of a batch are computed in step, so that who
reads too slowly is cut off instead of holding up the others."""

ProgressSink = Callable[[str, ProgressReport], None]


@dataclass(frozen=True, slots=True)
class ServerState:
    """``status``: READY, BUSY (every device computes), LOADING or FAILED."""

    status: str
    reason: str = ""


class ModelServer:
    """Implements :class:`agent.serve.device.BatchEvents`. Belongs to one event loop.

    ``on_change`` is called when :meth:`state` or the number of slots may have changed, ``on_failure`` once
    when no device can compute any more.
    """

    def __init__(
        self,
        launch: Launch,
        scratch: Scratch,
        devices: tuple[str, ...],
        *,
        on_change: Callable[[], None] = lambda: None,
        restarts: RestartPolicy = RESTARTS,
    ) -> None:
        self.scratch = scratch
        self.devices = [DeviceRunner(name, launch, scratch, self, restarts) for name in devices]
        self.on_progress_report: ProgressSink = lambda tag, report: None
        """Is told of what models say of their progress, by the tag of the request."""
        self._launch = launch
        self._restarts = restarts
        self._on_change = on_change
        self._numbers = itertools.count(1)
        self._computations: dict[int, Computation] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._answered = asyncio.Event()
        self.ended: asyncio.Future[EngineEnd] = asyncio.get_running_loop().create_future()
        """How the last device ended."""
        self.facts: ModelFacts | None = None
        """There once :meth:`start` has returned."""
        self.admission = EngineAdmission(1, 0, asyncio.get_running_loop().time)
        self.queue: BatchQueue[Computation] = BatchQueue(0.0)
        self.codecs: CodecPool | None = None
        self._decoding = 0
        """Requests whose items will come."""
        self.on_batch: Callable[[int], None] = lambda items: None
        """Is told of each batch that is given to a device, by the number of its items."""
        self.batches = 0
        self.items = 0
        self.out_of_memory = 0
        self.retried = 0

    async def start(self) -> EngineEnd | None:
        """None when the model can be served, on one device at least; otherwise why not."""
        self._tasks = [asyncio.create_task(self._keep(each), name=each.device) for each in self.devices]
        while self.facts is None and not self.ended.done():
            self._answered.clear()
            await self._answered.wait()
        if self.facts is None:
            return self.ended.result()
        self.queue = BatchQueue(self.facts.max_wait_s)
        count, timeout_s = worker_count(self.facts.workers), self.facts.timeout_s
        self.codecs = CodecPool(
            self._launch, self.scratch, count, timeout_s, self._codecs_changed, self._restarts
        )
        self.codecs.start()
        while not self.codecs.works and not self.ended.done():
            if self.codecs.failure is not None:
                return self.codecs.failure
            self._answered.clear()
            await self._answered.wait()
        return self.ended.result() if self.ended.done() else None

    async def close(self) -> None:
        """End all processes. Requests that run fail."""
        if self._timer is not None:
            self._timer.cancel()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self.codecs is not None:
            await self.codecs.close()

    # --- What is so now

    def state(self) -> ServerState:
        alive = [device for device in self.devices if device.status is DeviceStatus.READY]
        if not alive:
            loading = next((d for d in self.devices if d.status is DeviceStatus.LOADING), None)
            worst = loading or self.devices[0]
            return ServerState("LOADING" if loading else "FAILED", worst.reason)
        if self.codecs is None or not self.codecs.works:
            begun = self.codecs is not None and self.codecs.worked
            return ServerState("FAILED" if begun else "LOADING", self.codecs.reason if self.codecs else "")
        return ServerState("BUSY" if all(device.computing for device in alive) else "READY")

    @property
    def slots(self) -> int:
        """Requests that may be sent here at once: two batches for each device, so that the next one is full
        when the first is done."""
        assert self.facts is not None
        return self.facts.slots or 2 * self._batch_items()

    @property
    def running(self) -> int:
        return sum(device.running for device in self.devices)

    @property
    def waiting(self) -> int:
        """Requests that are here and not given to a device."""
        return max(0, self.admission.taken - self.running)

    def _batch_items(self) -> int:
        usable = [device.limit for device in self.devices if device.status is not DeviceStatus.FAILED]
        return sum(usable) or max(device.limit for device in self.devices)

    # --- Requests

    def check_ready(self) -> None:
        """Raises :class:`NotReady` while nothing can be computed and that will not change soon."""
        codecs_work = self.codecs is not None and self.codecs.works
        if not codecs_work or all(device.back_in_s > PATIENCE_S for device in self.devices):
            raise NotReady(f"The model cannot compute now: {self.state().reason}", retry_after_s=PATIENCE_S)

    @contextmanager
    def item_to_come(self) -> Iterator[None]:
        """A batch may wait for the item that is given to :meth:`compute` inside."""
        self._decoding += 1
        try:
            yield
        finally:
            self._decoding -= 1
            if not self._decoding:
                self._pump()

    def compute(self, item: Parcel, length: float | None, tag: str) -> Computation:
        """Have ``item`` computed; to be given back with :meth:`release`."""
        computation = Computation(next(self._numbers), item, length, tag)
        self._computations[computation.number] = computation
        self.queue.add(computation.number, computation, asyncio.get_running_loop().time(), length)
        self._pump()
        return computation

    def release(self, computation: Computation) -> None:
        """Nobody waits for it any more: out of the queue with it, and a device that computes it is told."""
        self._computations.pop(computation.number, None)
        if not self.queue.remove(computation.number) and computation.device and not computation.over:
            computation.device.drop(computation.number)
        self.scratch.remove(*computation.parcels())

    # --- Batches

    def _pump(self) -> None:
        """Give batches that are due to devices that can take one."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        now = asyncio.get_running_loop().time()
        while len(self.queue):
            device = self._next_device()
            if device is None:
                return
            due_s = self.queue.due_at(device.limit, more_come=self._decoding > 0)
            if due_s is not None and due_s > now:
                self._timer = asyncio.get_running_loop().call_at(due_s, self._pump)
                return
            taken = self.queue.take(device.limit)
            for _, computation in taken:
                computation.device = device
            self.batches += 1
            self.items += len(taken)
            self.on_batch(len(taken))
            device.send([(number, computation.item) for number, computation in taken])

    def _next_device(self) -> DeviceRunner | None:
        """One that has nothing to do, or one that can be given a full batch ahead."""
        for device in self.devices:
            if device.idle:
                return device
        full = (d for d in self.devices if d.takes_ahead and self.queue.is_full(d.limit))
        return next(full, None)

    def on_outputs(self, device: DeviceRunner, said: Outputs) -> None:
        for number, output in said.outputs:
            computation = self._computations.get(number)
            if computation is None or computation.over:
                self.scratch.remove(output)
            elif said.streamed and computation.unread >= STREAM_OUTPUTS:
                self.scratch.remove(output)
                computation.put(ModelFault("slow", "the client read its stream too slowly"))
                device.drop(number)
            else:
                computation.begun, computation.streamed = True, said.streamed
                computation.put(output)
                computation.over = computation.over or not said.streamed
            if not said.streamed:
                device.settle(said, number)
        for number in said.complete:
            device.settle(said, number)
            computation = self._computations.get(number)
            if computation is not None and not computation.over:
                computation.streamed = True
                computation.put(None)

    def on_batch_done(self, device: DeviceRunner, batch: SentBatch, fault: ModelFault | None) -> None:
        if fault is None:
            self.queue.observe(asyncio.get_running_loop().time() - batch.begun_s)
        left = [self._computations[number] for number in batch.left if number in self._computations]
        left = [computation for computation in left if not computation.over]
        fault = fault or ModelFault("raised", "predict gave no output for this item")
        if fault.kind == "memory":
            self.out_of_memory += 1
            if batch.size > 1:
                device.halve(batch.size)
                self._on_change()
        again = [each for each in left if self._is_computed_again(each, batch, fault)]
        for computation in left:
            computation.device = None
            if computation not in again:
                computation.put(fault)
        for computation in reversed(again):
            self.retried += 1
            if fault.kind in ("memory", "lost"):
                self.queue.put_back(computation.number, computation, computation.length)
            else:
                self.queue.add_alone(computation.number, computation)

    @staticmethod
    def _is_computed_again(computation: Computation, batch: SentBatch, fault: ModelFault) -> bool:
        """One that failed in a batch of its own has itself to blame, unless its process ended, which may have
        had another cause once. What was in a batch that was not begun is not to blame."""
        if computation.begun:
            return False
        if fault.kind == "crashed":
            computation.crashes += 1
            return computation.crashes == 1
        return batch.size > 1 or fault.kind == "lost"

    def on_progress(self, report: ProgressReport) -> None:
        for number in report.items:
            computation = self._computations.get(number)
            if computation is not None:
                self.on_progress_report(computation.tag, report)

    # --- Processes

    def on_device_change(self, device: DeviceRunner) -> None:
        if device.facts is not None:
            self.facts = self.facts or device.facts
            self.admission.resize(self.slots, max(self.facts.max_queue + self._batch_items(), self.slots))
        if all(each.back_in_s > PATIENCE_S for each in self.devices):
            self._give_up_waiting(device.reason)
        self._pump()
        self._changed()

    def _codecs_changed(self) -> None:
        self._changed()

    def _changed(self) -> None:
        self._answered.set()
        self._on_change()

    def _give_up_waiting(self, reason: str) -> None:
        """No process will compute soon what waits."""
        while taken := self.queue.take(1):
            taken[0][1].put(ModelFault("unready", reason))

    async def _keep(self, device: DeviceRunner) -> None:
        """Keep a device's process; when it is given up, try again rarely for as long as another one lives."""
        while True:
            await device.run()
            assert device.end is not None
            _log.error("given up on %s: %s", device.device, device.end.reason)
            if all(each.end is not None for each in self.devices):
                if not self.ended.done():
                    self.ended.set_result(device.end)
                self._changed()
                return
            await asyncio.sleep(self._restarts.rarely_s)
