"""Figures as rows of tables, and the progress of a simulation."""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TextIO

from gateway.cli_support.console import StatusLine
from gateway.tools.simulate.inputs import Job, Traffic
from gateway.tools.simulate.simulation import FleetAnswer, Goal, Trial

TERMINAL_S = 0.5
PLAIN_S = 5.0
_EVERY = 256
"""Requests between two looks at the clock."""
_TIMES = ("TTFT P50", "P95", "P99", "LATENCY P50", "P95", "P99")
COLUMNS = ("POLICY", "DONE", "REFUSED", *_TIMES, "BUSY", "CV", "GOOD/S", "HITS")


GATEWAY_COLUMNS = ("CROSSED", "IDLE", "FAIR")
"""Of several gateways: requests that came when their slot had gone to another gateway; slots that nobody used
while requests waited, on average; see :class:`~gateway.tools.simulate.tally.Fairness`."""


def rows_of(policies: Mapping[str, Mapping[str, Any]], gateways: bool = False) -> list[list[str]]:
    """A row for each policy, from what ``--json`` prints under ``policies``; with ``gateways``, those of
    :data:`GATEWAY_COLUMNS` too."""
    rows = [
        [
            name,
            str(each["completed"]),
            str(each["rejected"]),
            *map(_seconds, each["ttft_s"].values()),
            *map(_seconds, each["latency_s"].values()),
            f"{each['utilisation']:.0%}",
            f"{each['utilisation_cv']:.2f}",
            f"{each['goodput_rps']:.2f}",
            f"{each['prefix_hit_rate']:.0%}",
        ]
        for name, each in policies.items()
    ]
    if gateways:
        for row, each in zip(rows, policies.values(), strict=True):
            fairness = each["fairness"]
            row += [
                f"{each['opens_refused']:.2%}",
                f"{each['idle_while_wanted_s'] / max(each['ended_s'], 1e-9):.2f}",
                "–" if fairness is None else f"{fairness:.2f}",
            ]
    return rows


def answer_columns(goals: Iterable[Goal]) -> list[str]:
    """The columns of :func:`answer_rows`."""
    return ["POLICY", "", "FLEET", "ENOUGH", *(goal.text.upper() for goal in goals)]


def answer_rows(answers: Mapping[str, FleetAnswer], goals: Iterable[Goal]) -> list[list[str]]:
    """Two rows for each policy: the fleet that was asked for, and the one that was found."""
    wanted = tuple(goals)
    return [
        [name, which, trial.fleet, "yes" if trial.meets else "no", *values_of(trial, wanted)]
        for name, answer in answers.items()
        for which, trial in (("asked", answer.asked), ("found", answer.found))
    ]


def values_of(trial: Trial, goals: Iterable[Goal]) -> list[str]:
    """The figure that each goal is about, with its unit."""
    return [
        f"{goal.value(trial.figures):.2%}" if goal.rank is None else _seconds(goal.value(trial.figures))
        for goal in goals
    ]


def _seconds(value: float | None) -> str:
    if value is None:
        return "–"
    return f"{value * 1000:.0f} ms" if value < 1 else f"{value:.3g} s" if value < 1000 else f"{value:,.0f} s"


@dataclass(frozen=True, slots=True)
class ReportedTraffic:
    """``traffic``, with its progress written to ``stream``."""

    traffic: Traffic
    label: str
    stream: TextIO
    clock: Callable[[], float] = time.monotonic

    @property
    def block_tokens(self) -> int:
        """See :class:`~gateway.tools.simulate.inputs.Traffic`."""
        return self.traffic.block_tokens

    def jobs(self) -> Iterator[Job]:
        """See :class:`~gateway.tools.simulate.inputs.Traffic`."""
        line = StatusLine(self.stream)
        every_s = TERMINAL_S if line.in_place else PLAIN_S
        began_s = told_s = self.clock()
        try:
            for number, job in enumerate(self.traffic.jobs(), 1):
                yield job
                if number % _EVERY == 0 and (now := self.clock()) - told_s >= every_s:
                    told_s = now
                    came = f"{number:,} requests came by {job.at_s:,.0f} s"
                    line.show(f"{self.label}: {came}, {number / (now - began_s):,.0f} a second")
        finally:
            line.clear()
