"""Counts what became of all requests, keeps those that matter, prints, and says whether the run passed."""

import json
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.chaos.checks import Verdict
from tests.chaos.journal import Journal
from tests.chaos.oracle import Oracle, Ruling
from tests.chaos.outcome import Outcome
from tests.chaos.sampling import Drift
from tests.chaos.schedule import Schedule

_KEPT = 200
RSS_DRIFT = 0.05
DESCRIPTOR_DRIFT = 40
"""More open at the end than early in the run, and it is a leak: load alone moves it by tens."""
JUDGED_FROM_S = 600.0
"""Runs shorter than that say nothing about memory."""
_FINE = (Verdict.RIGHT, Verdict.LEFT, Verdict.ERROR)


@dataclass(slots=True)
class Tally:
    """Adds up outcomes while the run goes."""

    oracle: Oracle
    journal: Journal
    verdicts: Counter[Verdict] = field(default_factory=Counter)
    rulings: Counter[Ruling] = field(default_factory=Counter)
    errors: Counter[str] = field(default_factory=Counter)
    routes: Counter[str] = field(default_factory=Counter)
    behaviours: Counter[str] = field(default_factory=Counter)
    by_fault: "defaultdict[str, Counter[str]]" = field(default_factory=lambda: defaultdict(Counter))
    offending: list[str] = field(default_factory=list)
    longest_pause_s: float = 0.0
    repaired: int = 0
    """Answers that are right although faults touched their model while they ran."""

    @property
    def requests(self) -> int:
        return self.verdicts.total()

    def add(self, outcome: Outcome) -> None:
        """One request is over."""
        finding, ask = outcome.finding, outcome.ask
        self.verdicts[finding.verdict] += 1
        self.routes[f"{ask.route} {'streamed' if ask.stream else 'whole'}"] += 1
        self.behaviours[" ".join(filter(None, (ask.behaviour, ask.special, "SDK" if ask.sdk else "")))] += 1
        touching = self.journal.touching(ask.model, outcome.began_s, outcome.ended_s)
        column: str = finding.verdict
        allowed = finding.verdict in _FINE
        if finding.verdict is Verdict.ERROR and outcome.failure is not None:
            ruling = self.oracle.rule(ask, outcome.failure, outcome.began_s, outcome.ended_s)
            self.rulings[ruling] += 1
            self.errors[f"{outcome.failure} ({ruling})"] += 1
            column, allowed = ruling, ruling.allowed
        elif finding.verdict is Verdict.RIGHT:
            self.longest_pause_s = max(self.longest_pause_s, outcome.pause_s)
            self.repaired += bool(touching)
            if self.oracle.is_late(ask, outcome.began_s, outcome.ended_s):
                column, allowed = Ruling.LATE, False
                self.rulings[Ruling.LATE] += 1
        for kind in {str(entry.fault.kind) for entry in touching} or {"(none)"}:
            self.by_fault[kind][column] += 1
        if not allowed and len(self.offending) < _KEPT:
            faults = "; ".join(str(entry) for entry in touching)
            self.offending.append(f"{column}: {outcome}\n    faults: {faults or 'none'}")

    @property
    def defects(self) -> dict[str, int]:
        """What may not happen at all, by name."""
        wrong = {str(verdict): count for verdict, count in self.verdicts.items() if verdict not in _FINE}
        return wrong | {str(rule): count for rule, count in self.rulings.items() if not rule.allowed}


@dataclass(slots=True)
class Report:
    """All there is to say about a run."""

    schedule: Schedule
    tally: Tally
    wall_s: float
    """How long requests were sent."""
    in_time: int
    """How many were over within that time."""
    leaks: list[str]
    unclean: list[str]
    drifts: list[Drift]
    left_out: int
    served: dict[str, int]
    cpu_s: dict[str, float]
    faults_struck: int

    @property
    def failures(self) -> list[str]:
        """Why the run did not pass; empty when it did."""
        found = [f"{count} × {name}" for name, count in self.tally.defects.items()]
        found += [f"leak: {leak}" for leak in self.leaks] + self.unclean
        if self.schedule.seconds >= JUDGED_FROM_S:
            found += [f"memory: {drift}" for drift in self.drifts if drift.rss > RSS_DRIFT]
            found += [f"fds: {drift}" for drift in self.drifts if drift.descriptors > DESCRIPTOR_DRIFT]
        if not self.tally.verdicts[Verdict.RIGHT]:
            found.append("no answer was right")
        return found

    def text(self) -> str:
        """For people."""
        tally, schedule = self.tally, self.schedule
        rate = self.in_time / max(1.0, self.wall_s)
        lines = [
            f"chaos: seed {schedule.seed}, {self.wall_s:.0f} s, {self.faults_struck} faults "
            f"(schedule {schedule.digest}, longest gap {schedule.longest_gap_s:.2f} s)",
            f"{'requests':<34}{tally.requests:>8}   {rate:.1f}/s, {self.left_out} left out",
            *(f"  {verdict:<32}{tally.verdicts[verdict]:>8}" for verdict in Verdict),
            f"{'right though faults touched them':<34}{tally.repaired:>8}",
            f"{'longest pause in a right stream':<34}{tally.longest_pause_s:>8.1f} s",
            "errors",
            *(f"  {count:>6}  {error}" for error, count in tally.errors.most_common()),
            *self._fault_table(),
            *_counted("routes", tally.routes),
            *_counted("clients", tally.behaviours),
            *_counted("served after the end, by agent", Counter(self.served)),
            "CPU s: " + ", ".join(f"{name} {spent:.0f}" for name, spent in self.cpu_s.items()),
            "drift: last fifth against second fifth" if self.drifts else "drift: too short to say",
            *(f"  {drift}" for drift in self.drifts),
            *(f"leak: {leak}" for leak in self.leaks),
        ]
        return "\n".join(lines)

    def _fault_table(self) -> list[str]:
        lines = ["requests by the faults that touched them (a request may be in several lines)"]
        for kind, counts in sorted(self.tally.by_fault.items()):
            shown = ", ".join(f"{name} {count}" for name, count in counts.most_common())
            lines.append(f"  {kind:<34}{shown}")
        return lines

    def write_json(self, path: Path) -> None:
        """For programs."""
        tally = self.tally
        value: dict[str, Any] = {
            "seed": self.schedule.seed,
            "seconds": self.schedule.seconds,
            "schedule": self.schedule.digest,
            "wall_s": round(self.wall_s, 1),
            "faults": self.faults_struck,
            "longest_gap_s": round(self.schedule.longest_gap_s, 3),
            "requests": tally.requests,
            "requests_per_s": round(self.in_time / max(1.0, self.wall_s), 1),
            "left_out": self.left_out,
            "verdicts": {str(verdict): tally.verdicts[verdict] for verdict in Verdict},
            "rulings": {str(ruling): tally.rulings[ruling] for ruling in Ruling},
            "errors": dict(tally.errors),
            "by_fault": {kind: dict(counts) for kind, counts in tally.by_fault.items()},
            "longest_pause_s": round(tally.longest_pause_s, 3),
            "leaks": self.leaks,
            "unclean": self.unclean,
            "drifts": [str(drift) for drift in self.drifts],
            "cpu_s": {name: round(spent, 1) for name, spent in self.cpu_s.items()},
            "failures": self.failures,
            "offending": tally.offending,
        }
        path.write_text(json.dumps(value, indent=1) + "\n")


def _counted(title: str, counts: Counter[str]) -> list[str]:
    return [f"{title}: " + ", ".join(f"{name} {count}" for name, count in sorted(counts.items()))]
