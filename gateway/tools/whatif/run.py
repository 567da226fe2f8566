"""The answer to a what-if: what was measured, what the simulator makes of the same requests on the same
fleet, and what it makes of them with the changes.

The first two stand side by side, so that everybody sees how far the simulation is off. The last two are
compared: they differ in what was asked for and nothing else.
"""

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gateway.api.admin.whatif_body import WhatIfBody
from gateway.tools.simulate.inputs import BadSpec
from gateway.tools.whatif.changes import FleetPlan, PlannedChange, PlannedDeployment, planned
from gateway.tools.whatif.facts import ReplayFact, why_left_out
from gateway.tools.whatif.fleet import FleetNow
from gateway.tools.whatif.outcomes import (
    FleetCost,
    Outcomes,
    ServiceLevel,
    figures_of,
    measured,
    series_of,
    step_s,
)
from gateway.tools.whatif.recording import ReplayRecording
from gateway.tools.whatif.replay import ModelReplay, ReplayedJobs, by_model, jobs_of
from gateway.tools.whatif.speeds import UNLIMITED_TOKENS, SpeedOrigin

Json = dict[str, Any]
Report = Callable[[int, int], None]
"""Told how many requests of how many have been replayed."""

MOST_MODELS = 200
"""Shown by themselves, the busiest first; the sums are of all."""

ALWAYS = (
    "The fleet is as it is now, for the whole time; requests that are not over are not replayed, and the "
    "fleet is idle at the beginning.",
    "Every deployment of a model may take every request for it: versions, regions, sessions and failures are "
    "left out, and each model has its devices to itself.",
    "Requests come when they came, also where clients would have waited for an answer before they asked "
    "again.",
    "Each request finds as much of its prompt cached as it did, wherever it goes.",
)
"""What is true of every what-if, for people."""


class NothingToReplay(BadSpec):
    """There is no request that could be replayed. ``left_out`` says how many there were, and why not."""

    def __init__(self, message: str, left_out: Mapping[str, int]) -> None:
        super().__init__("minutes", message)
        self.left_out = dict(left_out)


@dataclass(frozen=True, slots=True)
class _Found:
    """One model."""

    facts: Sequence[ReplayFact]
    replayed: ReplayedJobs
    measured: Outcomes
    before: Outcomes
    after: Outcomes


def run_whatif(
    recording: ReplayRecording, fleet: FleetNow, body: WhatIfBody, report: Report = lambda done, of: None
) -> Json:
    """The answer, as ``POST /admin/whatif`` gives it. Raises BadSpec."""
    began_s = time.process_time()
    change = planned(fleet, body)
    left_out = Counter(recording.left_out)
    jobs = _jobs(recording, change.before, left_out)
    if not jobs:
        raise NothingToReplay(_nothing(recording, left_out), left_out)
    found = _replayed(recording, change, jobs, body, report)
    answer = {
        "from": recording.from_s,
        "until": recording.until_s,
        "span_s": recording.span_s,
        "source": recording.source,
        "requests": sum(len(each.facts) for each in found.values()),
        "seen": recording.seen,
        "left_out": [
            {"code": code, "requests": count, "words": why_left_out(code, count)}
            for code, count in left_out.most_common()
        ],
        "estimated": sum(each.replayed.estimated for each in found.values()),
        "changes": list(change.words),
        "speeds": _speeds(change, found),
        "notes": _notes(recording, fleet, change, found),
        "level": {"first_token_s": body.good_first_s, "token_s": body.good_each_s},
        **_figures(recording, change, found, body.scale),
    }
    return {**answer, "cpu_s": time.process_time() - began_s}


def _jobs(
    recording: ReplayRecording, before: FleetPlan, left_out: Counter[str]
) -> dict[str, tuple[Sequence[ReplayFact], ReplayedJobs]]:
    """What can be replayed, by model."""
    jobs: dict[str, tuple[Sequence[ReplayFact], ReplayedJobs]] = {}
    for model, facts in by_model(recording.facts).items():
        if model not in before.deployments:
            left_out["not_served"] += len(facts)
            continue
        replayed = jobs_of(facts, recording.from_s)
        if replayed is None:
            left_out["no_tokens"] += len(facts)
        else:
            jobs[model] = facts, replayed
    return jobs


def _nothing(recording: ReplayRecording, left_out: Counter[str]) -> str:
    if not recording.seen:
        minutes = f"{recording.span_s / 60:.0f}"
        before = "minute" if minutes == "1" else f"{minutes} minutes"
        return f"no request was over in the {before} before"
    why = "; ".join(f"{count:,} {why_left_out(code, count)}" for code, count in left_out.most_common())
    if recording.seen == 1:
        return f"the only request cannot be replayed: {why}"
    return f"of {recording.seen:,} requests none can be replayed: {why}"


def _replayed(
    recording: ReplayRecording,
    change: PlannedChange,
    jobs: Mapping[str, tuple[Sequence[ReplayFact], ReplayedJobs]],
    body: WhatIfBody,
    report: Report,
) -> dict[str, _Found]:
    """Every model before and after. One that nothing changes for is replayed once."""
    level = ServiceLevel(body.good_first_s, body.good_each_s)
    pairs = {
        model: (
            _replay(change.before, model, level, body.seed),
            _replay(change.after, model, level, body.seed),
        )
        for model in jobs
    }
    of = sum(len(jobs[model][1].jobs) * (1 + (a != b)) for model, (a, b) in pairs.items())
    done = 0

    def run(replay: ModelReplay, replayed: ReplayedJobs) -> Outcomes:
        nonlocal done
        begun = done
        outcomes = replay.run(replayed.jobs, lambda so_far: report(begun + so_far, of))
        done += len(replayed.jobs)
        return outcomes

    found = {}
    for model, (facts, replayed) in jobs.items():
        before, after = pairs[model]
        first = run(before, replayed)
        second = first if after == before else run(after, replayed)
        real = measured(facts, recording.from_s, level)
        found[model] = _Found(facts, replayed, real, first, second)
    report(of, of)
    return found


def _replay(plan: FleetPlan, model: str, level: ServiceLevel, seed: int) -> ModelReplay:
    deployments = tuple(plan.deployments[model])
    return ModelReplay(model, deployments, plan.policy_of(model), plan.queue, plan.scale, seed, level)


def _figures(
    recording: ReplayRecording, change: PlannedChange, found: Mapping[str, _Found], scale: float
) -> Json:
    """Sums, models by themselves, and the courses."""
    span_s = recording.span_s
    sums = {
        name: Outcomes(next(iter(found.values())).before.level) for name in ("measured", "before", "after")
    }
    models = []
    for model, each in sorted(found.items(), key=lambda pair: -len(pair[1].facts)):
        costs = {
            "measured": _cost(change.before.deployments[model]),
            "before": _cost(change.before.deployments[model]),
            "after": _cost(change.after.deployments[model]),
        }
        row: Json = {"model": model}
        for name, sum_ in sums.items():
            outcomes: Outcomes = getattr(each, name)
            sum_.join(outcomes)
            row[name] = figures_of(outcomes, costs[name], span_s, _came_s(name, span_s, scale))
        row["policy"] = [change.before.policy_of(model), change.after.policy_of(model)]
        models.append(row)
    total = {}
    for name, sum_ in sums.items():
        plan = change.after if name == "after" else change.before
        cost = _cost([one for model in found for one in plan.deployments[model]])
        total[name] = figures_of(sum_, cost, span_s, _came_s(name, span_s, scale))
    arrivals = [fact.at_s - recording.from_s for each in found.values() for fact in each.facts]
    begin_s, lasted_s = min(arrivals), max(1.0, max(arrivals) - min(arrivals))
    paces = {"after": scale}
    courses = {name: series_of(sum_, begin_s, lasted_s, paces.get(name, 1.0)) for name, sum_ in sums.items()}
    return {
        "total": total,
        "models": models[:MOST_MODELS],
        "series": {"from": recording.from_s + begin_s, "step_s": step_s(lasted_s), **courses},
    }


def _came_s(name: str, span_s: float, scale: float) -> float:
    """In how long the requests came."""
    return span_s / scale if name == "after" else span_s


def _cost(deployments: Sequence[PlannedDeployment]) -> FleetCost:
    prices = [each.gpu_hour for each in deployments]
    known = [each for each in prices if each is not None]
    per_hour = sum(known) if len(known) == len(prices) else None
    return FleetCost(len(deployments), sum(each.slots for each in deployments), per_hour)


def _speeds(change: PlannedChange, found: Mapping[str, _Found]) -> list[Json]:
    """How fast each model was taken to be on each class, and where that is from."""
    rows: dict[tuple[str, str, str], Json] = {}
    for name, plan in (("before", change.before), ("after", change.after)):
        for model in found:
            for each in plan.deployments[model]:
                speeds = each.speeds
                row = rows.setdefault(
                    (model, each.device, speeds.words),
                    {
                        "model": model,
                        "device": each.device,
                        "origin": speeds.origin.value,
                        "words": speeds.words,
                        "tokens_per_s": speeds.tokens_per_s,
                        "prompt_tokens_per_s": speeds.prompt_tokens_per_s,
                        "before": 0,
                        "after": 0,
                    },
                )
                row[name] += 1
    return list(rows.values())


def _notes(
    recording: ReplayRecording, fleet: FleetNow, change: PlannedChange, found: Mapping[str, _Found]
) -> list[str]:
    """What was assumed, in the order of its weight."""
    notes: list[str] = []
    if fleet.elsewhere:
        notes.append(
            f"The requests of processes on other hosts ({', '.join(fleet.elsewhere)}) are not in it, while "
            "the fleet is whole: export their facts there (trunkline whatif --export) and replay all files "
            "together."
        )
    replayed = len(recording.facts) + sum(recording.left_out.values())
    if recording.seen > replayed:
        notes.append(
            f"Of {recording.seen:,} requests those of the busiest {recording.span_s / 60:.0f} minutes are "
            "replayed."
        )
    weak = (SpeedOrigin.PUBLIC, SpeedOrigin.OTHER_MODELS, SpeedOrigin.SCALED, SpeedOrigin.FEW)
    if any(row["origin"] in weak for row in _speeds(change, found)):
        notes.append("Not every speed was measured: see where each is from.")
    estimated = sum(each.replayed.estimated for each in found.values())
    if estimated:
        notes.append(
            f"Requests whose tokens were not counted, most often because they were refused or broke off, are "
            f"taken for the median of their model: {estimated:,}."
        )
    gone = _gone(change, found)
    if gone:
        notes.append(f"Deployments that answered in this time and are not there now: {gone}.")
    if any(_is_unlimited(each) for model in found for each in change.before.deployments[model]):
        notes.append("Where agents do not say how much context engines have room for, it is not limited.")
    return [*notes, *change.notes, *ALWAYS]


def _is_unlimited(planned: PlannedDeployment) -> bool:
    return (planned.kv_tokens or UNLIMITED_TOKENS) == UNLIMITED_TOKENS


def _gone(change: PlannedChange, found: Mapping[str, _Found]) -> int:
    there = {each.key for model in found for each in change.before.deployments[model]}
    ran = {fact.deployment for each in found.values() for fact in each.facts if fact.deployment}
    return len(ran - there)
