"""The load itself: as many workers as there may be requests at once, each taking the next start in turn.

In an open loop a start is a moment fixed beforehand; when all workers are busy it waits for one, and its
latency counts from that moment all the same (no coordinated omission). In a closed loop it is the moment at
which a worker is free.
"""

import asyncio
import time
from collections.abc import Iterator

from gateway.tools.bench.connection import BenchConnection, BenchRequest, connect, request_of
from gateway.tools.bench.plan import BenchPlan, BenchTarget, RequestFailed, TargetUnusable, starts_s
from gateway.tools.bench.tally import BenchTally

_PAUSE_S = 0.1
"""A worker that could not connect waits, so that an endpoint that is away is not hammered."""


class Driver:
    """Runs one plan. ``tally`` may be read while it runs."""

    def __init__(self, target: BenchTarget, plan: BenchPlan, bodies: Iterator[bytes]) -> None:
        self.tally = BenchTally()
        self._target = target
        self._plan = plan
        self._bodies = bodies
        self._time = time.monotonic  # uvloop's own clock counts milliseconds
        self._starts = None if plan.rate is None else starts_s(plan.arrivals, plan.rate, plan.seed)
        self._began_s = 0.0
        self._counted = 0
        self._window: list[float] = []
        """When counting began and ended."""
        self._workers: list[asyncio.Task[None]] = []
        self._timer: asyncio.Task[None] | None = None
        """Opens and closes the window."""
        self._uncounted: set[asyncio.Task[None]] = set()
        """Workers whose request is of the warm-up: of no use to anyone once the window is over."""
        self._stopped = False
        self._cpu_s = 0.0

    @property
    def elapsed_s(self) -> float:
        """Since counting began; negative during the warm-up."""
        return self._time() - self._began_s - self._plan.warmup_s

    @property
    def window_s(self) -> float:
        """How long was counted."""
        begun_s, ended_s = self._window
        return ended_s - begun_s

    @property
    def cpu_share(self) -> float:
        """The part of a core that this process used while it counted."""
        return self._cpu_s / self.window_s if self.window_s else 0.0

    def stop(self) -> None:
        """End early; what runs is cut off and counted as such."""
        self._stopped = True
        for task in self._tasks:
            task.cancel()

    @property
    def _tasks(self) -> list[asyncio.Task[None]]:
        return self._workers if self._timer is None else [self._timer, *self._workers]

    async def run(self) -> BenchTally:
        """Until all that was asked for is answered or has failed; not less than the plan's duration.

        The window opens a moment after the load began. A load that ends by its duration lasts until the
        window is over too, so that rates are never over less than was asked for.
        """
        self._began_s = self._time()
        self._timer = asyncio.create_task(self._keep_window())
        self._workers = [asyncio.create_task(self._work()) for _ in range(self._plan.most_running)]
        awaited = self._tasks if self._plan.requests is None else self._workers
        try:
            await asyncio.wait(awaited, return_when=asyncio.FIRST_EXCEPTION)
        finally:
            self.stop()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            self._close_window()
        for worker in self._workers:
            if not worker.cancelled() and (error := worker.exception()) is not None:
                raise error
        return self.tally

    # --- the window ---

    async def _keep_window(self) -> None:
        await asyncio.sleep(self._plan.warmup_s)
        self._open_window()
        if self._plan.duration_s is not None:
            await asyncio.sleep(self._plan.duration_s)
            self._close_window()
            for worker in self._uncounted:
                worker.cancel()

    def _open_window(self) -> None:
        if not self._window:
            self.tally.counting = True
            self._window = [self._time()]
            self._cpu_s = time.process_time()

    def _close_window(self) -> None:
        self._open_window()
        if len(self._window) == 1:
            self.tally.counting = False
            self._window.append(self._time())
            self._cpu_s = time.process_time() - self._cpu_s

    def _next_start(self) -> tuple[float, bool] | None:
        """When the next request is meant to start, and whether it counts; None when there is no more."""
        plan = self._plan
        after_s = self._time() - self._began_s if self._starts is None else next(self._starts)
        counts = after_s >= plan.warmup_s
        if plan.duration_s is not None and after_s >= plan.warmup_s + plan.duration_s:
            return None
        if counts and plan.requests is not None:
            if self._counted >= plan.requests:
                return None
            self._counted += 1
        return self._began_s + after_s, counts

    # --- the workers ---

    async def _work(self) -> None:
        worker = asyncio.current_task()
        assert worker is not None
        connection: BenchConnection | None = None
        try:
            while (start := self._next_start()) is not None:
                start_s, counts = start
                if counts:
                    connection = await self._started(connection, start_s, counts=True)
                elif len(self._window) == 2:  # an open loop that did not keep up has some left
                    await asyncio.sleep(0)
                else:
                    connection = await self._uncounted_start(worker, connection, start_s)
        finally:
            if connection is not None:
                connection.abort()

    async def _uncounted_start(
        self, worker: asyncio.Task[None], connection: BenchConnection | None, start_s: float
    ) -> BenchConnection | None:
        """One of the warm-up, given up once the window is over; then the worker goes on with the next."""
        self._uncounted.add(worker)
        try:
            return await self._started(connection, start_s, counts=False)
        except asyncio.CancelledError:
            if self._stopped:
                raise
            worker.uncancel()
            _drop(connection)
            return None
        finally:
            self._uncounted.discard(worker)

    async def _started(
        self, connection: BenchConnection | None, start_s: float, *, counts: bool
    ) -> BenchConnection | None:
        """One request, sent when it is meant to be."""
        if start_s > self._time():
            await asyncio.sleep(start_s - self._time())
        return await self._once(connection, start_s, counts)

    async def _once(
        self, connection: BenchConnection | None, start_s: float, counts: bool
    ) -> BenchConnection | None:
        """One request; the connection if it can be used again."""
        tally, exchange = self.tally, None
        tally.running += 1
        try:
            async with asyncio.timeout(self._plan.timeout_s):
                body = next(self._bodies)
                request = request_of(self._target, "POST", self._plan.route.path, body)
                if counts:
                    tally.delay.add(self._time() - start_s)
                connection, exchange = await self._exchange(connection, request, start_s, counts)
            usage = exchange.result()
            if counts:
                tally.add_success(self._time() - start_s, exchange.events, usage)
            tally.window_answers += tally.counting
        except TimeoutError:
            self._failed(
                RequestFailed("timeout", f"no whole answer within {self._plan.timeout_s:g} s"), counts
            )
            _drop(connection)
        except RequestFailed as failure:
            self._failed(failure, counts)
            if exchange is None:
                _drop(connection)
                await asyncio.sleep(_PAUSE_S)
        except asyncio.CancelledError:
            tally.cut += counts
            raise
        finally:
            tally.running -= 1
        if connection is not None and connection.usable:
            return connection
        _drop(connection)
        return None

    def _failed(self, failure: RequestFailed, counts: bool) -> None:
        if counts:
            self.tally.add_failure(failure)

    async def _exchange(
        self, connection: BenchConnection | None, request: bytes, start_s: float, counts: bool
    ) -> tuple[BenchConnection, BenchRequest]:
        """Send it; once more on a new connection if a kept one turns out to be closed by the server."""
        while True:
            if connection is None or not connection.usable:
                connection = await connect(self._target)
            kept = connection.used
            exchange = BenchRequest(self.tally, start_s, streamed=self._plan.stream, counted=counts)
            connection.send(request, exchange)
            try:
                await exchange.over
            except RequestFailed:
                if not kept or exchange.status:
                    raise
                connection = None
            except asyncio.CancelledError:
                connection.abort()
                raise
            else:
                return connection, exchange


def _drop(connection: BenchConnection | None) -> None:
    if connection is not None:
        connection.abort()


async def models_of(target: BenchTarget, timeout_s: float) -> list[str]:
    """The models the endpoint offers. Raises TargetUnusable with what to do."""
    try:
        async with asyncio.timeout(timeout_s):
            connection = await connect(target)
            exchange = BenchRequest(BenchTally(), 0.0, streamed=False, counted=False)
            connection.send(request_of(target, "GET", "/models", b""), exchange)
            await exchange.over
        connection.abort()
        exchange.result()
    except TimeoutError:
        raise TargetUnusable(f"{target.url} did not answer within {timeout_s:g} s") from None
    except RequestFailed as failure:
        raise TargetUnusable(f"{target.url}/models: {failure.kind}: {failure}") from None
    entries = (exchange.answer.value() or {}).get("data")
    listed = entries if isinstance(entries, list) else []
    names = [entry.get("id") for entry in listed if isinstance(entry, dict)]
    return [name for name in names if isinstance(name, str)]
