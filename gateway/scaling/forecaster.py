"""Keeps the history, has forecasts made of it, and reads them and the calendar: what waits for something.

Every process reads the forecasts; the one that acts for all writes the history, and has forecasts made every
hour, in a process of its own (:mod:`gateway.scaling.learning`).
"""

import asyncio
import contextlib
import math
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import orjson
import structlog

import gateway
from gateway.scaling.calendar_file import CalendarFile
from gateway.scaling.foresight import Foresight, LearntForecast
from gateway.scaling.learning_task import LearningTask, task_line
from gateway.scheduling.scaling.bursts import ending_at
from gateway.scheduling.scaling.data import ClassFacts, ScalingRule
from gateway.scheduling.scaling.events import is_unusual
from gateway.scheduling.scaling.forecast import STEP_S
from gateway.storage.errors import StateError
from gateway.storage.scaling_history import DAY_STEPS, KeptForecast, NotedLoad, Series
from shared.process.startup import environment_of_child

CHILD = (sys.executable, "-P", "-m", "gateway.scaling.learning")
LOOK_S = 30.0
LONGEST_S = 600.0
"""For a batch."""

BATCH = 10
"""Series that the process is given at once."""

LINE_BYTES = 1 << 20

KEPT_S = 172_800.0
"""Forecasts, which are of one day, are forgotten so long after they were made."""

_log = structlog.get_logger(__name__)


class ForecastStore(Protocol):
    """See :class:`gateway.storage.scaling_history.ScalingHistoryStore`."""

    def note(self, loads: Sequence[NotedLoad]) -> None: ...
    def names(self) -> list[Series]: ...
    def read(self, names: Sequence[Series], since_s: float) -> dict[Series, tuple[float, list[float]]]: ...
    def read_bursts(self, names: Sequence[Series], since_s: float) -> dict[Series, tuple[float, bytes]]: ...
    def forget(self, before_s: float, forecasts_before_s: float, bursts_before_s: float) -> int: ...
    def keep_forecasts(self, forecasts: Sequence[KeptForecast]) -> None: ...
    def forecasts(self, after_s: float) -> list[KeptForecast]: ...


@dataclass(frozen=True, slots=True)
class ForecasterSettings:
    """See the settings of the same names."""

    quantile: float = 0.9
    extra: float = 0.15
    weeks: int = 6
    every_s: float = 3600.0
    backtest_days: int = 14
    look_s: float = LOOK_S


class LearningFailed(Exception):
    """No forecasts could be made. The message says why."""


class Forecaster:
    """Belongs to the event loop's thread; the store is used from others."""

    def __init__(
        self,
        settings: ForecasterSettings,
        foresight: Foresight,
        store: ForecastStore,
        owns: Callable[[], bool],
        calendar: CalendarFile | None = None,
    ) -> None:
        """``owns``: whether this process is the one that acts for all."""
        self._settings = settings
        self._foresight = foresight
        self._store = store
        self._owns = owns
        self._calendar = calendar
        self._made_s: float | None = None
        """When forecasts were made last, by anybody."""
        self._read_s = float("-inf")
        self._failing = False

    async def run(self) -> None:
        """Until this is cancelled."""
        while True:
            await self.look()
            await asyncio.sleep(self._settings.look_s)

    async def look(self) -> None:
        """Write what is over, read what is new, and have forecasts made where it is time."""
        if self._calendar is not None:
            events = await asyncio.to_thread(self._calendar.read)
            if events is not None:
                self._foresight.events = events
        now, is_off = self._foresight.wall(), self._foresight.off is not None
        loads = self._foresight.history.take(now, writes=self._owns() and not is_off)
        if is_off:
            return
        try:
            if loads:
                await asyncio.to_thread(self._store.note, loads)
                loads = []
            await self._read(now)
            is_due = not 0 <= now - (self._made_s or 0.0) < self._settings.every_s
            if is_due and self._owns() and self._foresight.known:
                self._made_s = now
                await self._learn(now)
                await self._read(now)
        except (StateError, LearningFailed) as error:
            self._foresight.history.give_back(loads)
            if not self._failing:
                _log.warning("scaling_forecast_failed", error=str(error))
            self._failing = True
        else:
            self._failing = False

    async def _read(self, now: float) -> None:
        for each in await asyncio.to_thread(self._store.forecasts, min(self._read_s, now)):
            self._read_s = max(self._read_s, each.made_s)
            self._made_s = max(self._made_s or 0.0, each.made_s)
            try:
                found = LearntForecast.from_json(each.said, each.made_s)
            except (KeyError, TypeError, ValueError) as error:
                _log.warning(
                    "scaling_forecast_unreadable", model=each.model, device=each.device, error=repr(error)
                )
                continue
            self._foresight.learnt[each.model, each.device] = found

    async def _learn(self, now: float) -> None:
        since_s = now - self._settings.weeks * 604_800.0
        bursts_since_s = now - (self._settings.backtest_days + 1) * 86_400.0
        await asyncio.to_thread(self._store.forget, since_s, now - KEPT_S, bursts_since_s)
        known = dict(self._foresight.known)  # of more series than are kept others may be forgotten meanwhile
        names = [each for each in await asyncio.to_thread(self._store.names) if each in known]
        for start in range(0, len(names), BATCH):
            batch = names[start : start + BATCH]
            found = await asyncio.to_thread(self._store.read, batch, since_s)
            bursts = await asyncio.to_thread(self._store.read_bursts, batch, bursts_since_s)
            tasks = {
                name: await asyncio.to_thread(
                    self._task, name, known[name], start_s, values, now, bursts.get(name)
                )
                for name, (start_s, values) in found.items()
            }
            said = await _learnt([task_line(each) for each in tasks.values()])
            made_s = self._foresight.wall()  # each batch its own: who reads meanwhile asks for later ones
            kept = [KeptForecast(*name, made_s, each) for name, each in zip(tasks, said, strict=True)]
            for each in kept:
                self._tell_change(each)
            await asyncio.to_thread(self._store.keep_forecasts, kept)

    def _task(
        self,
        name: Series,
        known: tuple[ClassFacts, ScalingRule],
        start_s: float,
        values: list[float],
        now: float,
        bursts: tuple[float, bytes] | None = None,
    ) -> LearningTask:
        """The series ends with the last step that is over."""
        facts, rule = known
        steps = min(len(values), int((now - start_s) // STEP_S))
        whole = values[:steps] + [math.nan] * (int((now - start_s) // STEP_S) - steps)
        events = self._foresight.events
        kept: list[float | None] = [
            None
            if math.isnan(each) or (events and is_unusual(events, *name, start_s + (number + 0.5) * STEP_S))
            else each
            for number, each in enumerate(whole)
        ]
        settings, learnt = self._settings, self._foresight.learnt.get(name)
        acts = learnt is not None and learnt.state == "acting"
        about = (settings.quantile, settings.extra, settings.backtest_days, acts)
        end_s = start_s + len(whole) * STEP_S
        within = b"" if bursts is None else ending_at(*bursts, end_s, settings.backtest_days * DAY_STEPS)
        return LearningTask(start_s, kept, facts, rule, *about, within)

    def _tell_change(self, kept: KeptForecast) -> None:
        before = self._foresight.learnt.get((kept.model, kept.device))
        state = kept.said["state"]
        if (before.state if before is not None else "learning") != state:
            about = {"model": kept.model, "device": kept.device}
            _log.info("scaling_forecast_changed", **about, state=state, why=kept.said["why"])


async def _learnt(lines: Sequence[bytes]) -> list[dict[str, Any]]:
    """What the process says of each line. Raises LearningFailed."""
    environment = environment_of_child(gateway) | dict.fromkeys(
        ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"), "1"
    )
    pipe = asyncio.subprocess.PIPE
    try:
        child = await asyncio.create_subprocess_exec(
            *CHILD, stdin=pipe, stdout=pipe, env=environment, limit=LINE_BYTES
        )
    except OSError as error:
        raise LearningFailed(f"no process can be started: {os.strerror(error.errno or 0)}") from None
    try:
        async with asyncio.timeout(LONGEST_S):
            said, _ = await child.communicate(b"".join(lines))
    except TimeoutError:
        raise LearningFailed(f"it took longer than {LONGEST_S:g} s") from None
    finally:
        if child.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                child.kill()
            await child.wait()
    found = said.splitlines()
    if child.returncode or len(found) != len(lines):  # the last line may be a part of one
        raise LearningFailed(f"the process that makes them ended with {child.returncode}")
    return [orjson.loads(line) for line in found]
