"""What was asked for in the past weeks, for forecasts, and the forecasts that were made of it.

A row has the loads of one model on one class of device on one day (UTC): 288 means of five minutes, NaN where
nothing is known. What a row says of a step stays, whoever comes with it again: so it does not matter how many
processes note the same. Another table has of each of these days 30 bytes for each step, which say how the
load went within it (:mod:`gateway.scheduling.scaling.bursts`), zeros where nothing is known; they are kept
for as long as a back-test goes back.
"""

import math
import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, delete, select, tuple_

from gateway.storage import schema
from gateway.storage.database import Database

STEP_S = 300
DAY_STEPS = 288
STEP_BYTES = 30
_PACKED = struct.Struct(f"<{DAY_STEPS}f")

Series = tuple[str, str]
"""A model and a class of device."""


@dataclass(frozen=True, slots=True)
class NotedLoad:
    """Device-seconds of ``device`` that were asked of ``model`` in a second, in one step."""

    model: str
    device: str
    at_s: float
    """In the step, in seconds since 1970."""
    load: float
    bursts: bytes = b""
    """How the load went within the step, ``STEP_BYTES``; empty, or zeros: nobody knows."""


@dataclass(frozen=True, slots=True)
class KeptForecast:
    """A forecast as its maker has written it."""

    model: str
    device: str
    made_s: float
    said: Mapping[str, Any]


class ScalingHistoryStore:
    """Every method waits for the disk, and raises StateError when the database fails."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def note(self, loads: Sequence[NotedLoad]) -> None:
        """Take up what is not known yet."""
        days: dict[tuple[str, str, int], list[NotedLoad]] = {}
        for each in loads:
            days.setdefault((each.model, each.device, _step(each.at_s) // DAY_STEPS), []).append(each)
        with self._database.write_concurrently() as connection:
            for key in sorted(days):
                self._merge(connection, key, days[key])

    def _merge(self, connection: Connection, key: tuple[str, str, int], loads: Sequence[NotedLoad]) -> None:
        table = schema.scaling_loads
        model, device, day = key
        found = select(table.c.loads).where(
            table.c.model == model, table.c.device == device, table.c.day == day
        )
        kept = connection.execute(found.with_for_update()).scalar()
        values = [math.nan] * DAY_STEPS if kept is None else list(_PACKED.unpack(kept))
        for each in loads:
            place = _step(each.at_s) % DAY_STEPS
            if math.isnan(values[place]):
                values[place] = each.load
        row = {"model": model, "device": device, "day": day, "loads": _PACKED.pack(*values)}
        connection.execute(self._database.upsert(table), [row])
        known = [each for each in loads if len(each.bursts) == STEP_BYTES and any(each.bursts)]
        if known:
            self._merge_bursts(connection, key, known)

    def _merge_bursts(
        self, connection: Connection, key: tuple[str, str, int], loads: Iterable[NotedLoad]
    ) -> None:
        table = schema.scaling_bursts
        model, device, day = key
        found = select(table.c.bursts).where(
            table.c.model == model, table.c.device == device, table.c.day == day
        )
        kept = connection.execute(found).scalar()  # the row of the loads is locked
        values = bytearray(DAY_STEPS * STEP_BYTES if kept is None else kept)
        for each in loads:
            place = _step(each.at_s) % DAY_STEPS * STEP_BYTES
            if not any(values[place : place + STEP_BYTES]):
                values[place : place + STEP_BYTES] = each.bursts
        row = {"model": model, "device": device, "day": day, "bursts": bytes(values)}
        connection.execute(self._database.upsert(table), [row])

    def names(self) -> list[Series]:
        """Of which there are loads."""
        table = schema.scaling_loads
        with self._database.read() as connection:
            rows = connection.execute(select(table.c.model, table.c.device).distinct())
            return sorted((str(model), str(device)) for model, device in rows)

    def read(self, names: Sequence[Series], since_s: float) -> dict[Series, tuple[float, list[float]]]:
        """Of each of ``names``: when its first day begins that is not before that of ``since_s``, and all
        loads from then on; NaN: not known."""
        table, first = schema.scaling_loads, _step(since_s) // DAY_STEPS
        chosen = select(table).where(
            table.c.day >= first, tuple_(table.c.model, table.c.device).in_(list(names))
        )
        days: dict[Series, dict[int, Sequence[float]]] = {}
        with self._database.read() as connection:
            for row in connection.execute(chosen).mappings():
                days.setdefault((row["model"], row["device"]), {})[row["day"]] = _PACKED.unpack(row["loads"])
        found = {}
        for name, of_name in days.items():
            unknown = [math.nan] * DAY_STEPS
            values = [
                value for day in range(min(of_name), max(of_name) + 1) for value in of_name.get(day, unknown)
            ]
            found[name] = float(min(of_name) * DAY_STEPS * STEP_S), values
        return found

    def read_bursts(self, names: Sequence[Series], since_s: float) -> dict[Series, tuple[float, bytes]]:
        """Of each of ``names`` of which there are any: when its first day begins that is not before that of
        ``since_s``, and ``STEP_BYTES`` for each step from then on; zeros: not known."""
        table, first = schema.scaling_bursts, _step(since_s) // DAY_STEPS
        chosen = select(table).where(
            table.c.day >= first, tuple_(table.c.model, table.c.device).in_(list(names))
        )
        days: dict[Series, dict[int, bytes]] = {}
        with self._database.read() as connection:
            for row in connection.execute(chosen).mappings():
                days.setdefault((row["model"], row["device"]), {})[row["day"]] = row["bursts"]
        unknown = bytes(DAY_STEPS * STEP_BYTES)
        return {
            name: (
                float(min(of_name) * DAY_STEPS * STEP_S),
                b"".join(of_name.get(day, unknown) for day in range(min(of_name), max(of_name) + 1)),
            )
            for name, of_name in days.items()
        }

    def forget(self, before_s: float, forecasts_before_s: float, bursts_before_s: float) -> int:
        """Drop the days before that of ``before_s``, what went on within steps before the day of
        ``bursts_before_s``, and forecasts made before ``forecasts_before_s``; how many rows those were."""
        loads, forecasts, bursts = schema.scaling_loads, schema.scaling_forecasts, schema.scaling_bursts
        day, bursts_day = _step(before_s) // DAY_STEPS, _step(bursts_before_s) // DAY_STEPS
        with self._database.write_concurrently() as connection:
            count = connection.execute(delete(loads).where(loads.c.day < day)).rowcount
            count += connection.execute(delete(bursts).where(bursts.c.day < bursts_day)).rowcount
            old = delete(forecasts).where(forecasts.c.made_s < forecasts_before_s)
            return count + connection.execute(old).rowcount

    def keep_forecasts(self, forecasts: Sequence[KeptForecast]) -> None:
        """In the place of those that were made of the same before."""
        table = schema.scaling_forecasts
        rows = [
            {"model": each.model, "device": each.device, "made_s": each.made_s, "said": dict(each.said)}
            for each in sorted(forecasts, key=lambda each: (each.model, each.device))
        ]
        if rows:
            with self._database.write_concurrently() as connection:
                connection.execute(self._database.upsert(table), rows)

    def forecasts(self, after_s: float) -> list[KeptForecast]:
        """Those that were made later than that."""
        table = schema.scaling_forecasts
        with self._database.read() as connection:
            rows = connection.execute(select(table).where(table.c.made_s > after_s)).mappings()
            return [KeptForecast(**{str(name): value for name, value in row.items()}) for row in rows]


def _step(at_s: float) -> int:
    return math.floor(at_s / STEP_S)
