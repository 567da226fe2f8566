"""How long engines take to load, as measured; kept over restarts in ``load_times.json``."""

import math
import os
from contextlib import suppress
from pathlib import Path

import orjson
import structlog

log = structlog.get_logger("agent")

FILE = "load_times.json"
WEIGHT = 0.3
"""Weight of the newest load in the mean: the first load reads a disk, later ones a cache."""
MOST = 512
"""Engines remembered; above it the one measured longest ago is forgotten."""


class LoadTimes:
    """Averages by engine. Without a ``path``, or with one that cannot be used, they last as long as the
    program; a damaged file costs the figures in it and nothing else."""

    def __init__(self, path: Path | None = None) -> None:
        self._path = path
        self._seconds = {} if path is None else _read(path)

    def of(self, engine: str) -> float | None:
        """Seconds from start to ready; None when it was never measured."""
        return self._seconds.get(engine)

    def note(self, engine: str, took_s: float) -> None:
        """One more load."""
        before_s = self._seconds.pop(engine, took_s)
        self._seconds[engine] = round(before_s + WEIGHT * (took_s - before_s), 3)
        while len(self._seconds) > MOST:
            del self._seconds[next(iter(self._seconds))]
        if self._path is not None:
            self._write(self._path)

    def _write(self, path: Path) -> None:
        beside = path.with_name(f".{path.name}.{os.getpid()}")
        try:
            beside.write_bytes(orjson.dumps(self._seconds, option=orjson.OPT_INDENT_2))
            beside.replace(path)
        except OSError as error:
            log.warning("how long loading takes cannot be kept", path=str(path), reason=error.strerror)
            with suppress(OSError):
                beside.unlink(missing_ok=True)


def _read(path: Path) -> dict[str, float]:
    try:
        value = orjson.loads(path.read_bytes())
    except FileNotFoundError:
        return {}
    except (OSError, orjson.JSONDecodeError) as error:
        log.warning("how long loading takes is not known any more", path=str(path), reason=str(error))
        return {}
    items = value.items() if isinstance(value, dict) else ()
    return {name: float(item) for name, item in list(items)[:MOST] if _is_duration(item)}


def _is_duration(item: object) -> bool:
    return isinstance(item, int | float) and math.isfinite(item) and 0 <= item < 1e6
