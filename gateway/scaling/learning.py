"""Makes forecasts and judges them, in a process of its own: ``python -m gateway.scaling.learning``.

Standard input and output are JSON lines: a :class:`LearningTask` for each line of
:meth:`gateway.scaling.foresight.LearntForecast.from_json`. It takes numpy, and some seconds of one CPU for
each series; the event loop's process does neither.
"""

import math
import os
import sys
from typing import Any

import orjson
from pydantic import TypeAdapter

from gateway.scaling.learning_task import LearningTask
from gateway.scheduling.scaling.backtest import backtest
from gateway.scheduling.scaling.forecast import LoadSeries
from gateway.scheduling.scaling.pattern import DAY_STEPS, LEAST_DAYS, PatternLearner

NICENESS = 19
CPU_S = 600
LEAST_BACKTEST_DAYS = 7
KNOWN_SHARE = 0.5
"""Of the back-test's days that must be known."""

Json = dict[str, Any]


def learn(task: LearningTask) -> Json:
    """The forecast of the day that follows, its error, the back-test's verdict, and the state."""
    values = [math.nan if each is None else each for each in task.values]
    series = LoadSeries(task.start_s, values, task.bursts)
    learner = PatternLearner(series, task.quantile)
    days = _days(learner, task.days)
    if days is None:
        known, least = series.known / DAY_STEPS, LEAST_DAYS + LEAST_BACKTEST_DAYS
        why = f"{known:.1f} days are known; it takes {least}, the last {LEAST_BACKTEST_DAYS} to judge it by"
        return {"state": "learning", "why": why}
    error, forecasts = learner.held_out(days, task.facts.lead_s)
    verdict = backtest(series, forecasts, task.facts, task.rule, task.extra, acts=task.acts)
    forecast = learner.forecast(len(values))
    return {
        "state": "acting" if verdict.beats else "shadow",
        "why": verdict.why,
        "error": round(error.error, 4),
        "error_as_now": round(error.error_as_now, 4),
        "covered": round(error.covered, 4),
        "backtest": verdict.as_json(),
        "forecast": forecast.as_json(),
    }


def _days(learner: PatternLearner, most: int) -> int | None:
    """For the back-test; None: too little is known for it."""
    values = learner.series.values
    for days in range(most, LEAST_BACKTEST_DAYS - 1, -1):
        until = len(values) - days * DAY_STEPS
        if until > 0 and learner.can_learn(until):
            known = sum(not math.isnan(each) for each in values[until:])
            return days if known >= KNOWN_SHARE * days * DAY_STEPS else None
    return None


def _limit() -> None:
    if hasattr(os, "nice"):
        os.nice(NICENESS)
    try:
        import resource
    except ImportError:  # pragma: no cover - Windows
        return
    _, hard = resource.getrlimit(resource.RLIMIT_CPU)
    bound = CPU_S if hard == resource.RLIM_INFINITY else min(CPU_S, hard)
    resource.setrlimit(resource.RLIMIT_CPU, (bound, hard))


def main() -> None:
    """Answer each line."""
    _limit()
    reader = TypeAdapter(LearningTask)
    for line in sys.stdin.buffer:
        said = learn(reader.validate_json(line))
        sys.stdout.buffer.write(orjson.dumps(said) + b"\n")
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
