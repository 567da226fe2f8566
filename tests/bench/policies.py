"""All policies on the same traffic and the same fleets, by the simulator, as a table.

Each case is a half of a public trace, or a made-up mix, on a fleet. The policy ``cost`` was tuned on the
first halves; what is reported is the second (``--half``). Where one copy of a trace is too little for a
fleet, several are laid over each other, each begun at another place, with prefixes of its own. What it says
is exact, and the same on every machine, but for how long it took.
"""

import argparse
import heapq
import json
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import cycle, islice
from pathlib import Path
from typing import Any

from gateway.tools.simulate.chart import Heading, write_plot
from gateway.tools.simulate.devices import (
    DEFAULT_MODEL,
    MODELS,
    DevicePace,
    device_named,
    pace_of,
    slowed,
)
from gateway.tools.simulate.fleet import DeploymentBuild, DeviceGroup, fleet_of
from gateway.tools.simulate.inputs import Job, Traffic
from gateway.tools.simulate.mix import Mix
from gateway.tools.simulate.policies import choices
from gateway.tools.simulate.simulation import SimulationPlan, simulate
from gateway.tools.simulate.traces import TraceFile

POLICIES = (
    "cost,least-outstanding,round-robin,least-connections,power-of-two,least-load,cache-aware,"
    "load-aware-prefix,chwbl,clairvoyant"
)
AZURE, MOONCAKE = "azure_llm_code_2023.csv", "mooncake_synthetic.jsonl"
LENGTHS = {AZURE: 8819, MOONCAKE: 3993}
ALIKE, EIGHT = "8*h100", "4*h100,4*l4"
MIXED = "8*h100,8*a100,12*l40s,12*a10g,12*l4,6*t4,6*rtx4090"
THOUSAND = "125*h100,125*a100,188*l40s,188*a10g,188*l4,93*t4,93*rtx4090"
SMALL = 200
SLICE = 4400
MOST = 20_000
"""Requests of a case: of one with a single copy, of one with several."""


@dataclass(frozen=True, slots=True)
class Case:
    """``source`` is a trace's file name or a mix. It comes ``rate`` times as fast, in ``copies``. The devices
    are ``slower`` than their class, in turns, and nobody says so."""

    name: str
    source: str
    fleet: str
    rate: float = 1.0
    copies: int = 1
    slots: int | None = None
    slower: tuple[float, ...] = (1.0,)


CASES = (
    Case("azure-8-alike", AZURE, ALIKE, 25.0),
    Case("azure-8-mixed", AZURE, EIGHT, 12.0),
    Case("azure-4-unknown", AZURE, "4*h100", 4.0, slower=(1.0, 2.0, 4.0, 8.0)),
    Case("azure-64-mixed", AZURE, MIXED, 60.0),
    Case("azure-1000-mixed", AZURE, THOUSAND, 60.0, copies=16),
    Case("mooncake-8-alike", MOONCAKE, ALIKE, 1.5),
    Case("mooncake-8-mixed", MOONCAKE, EIGHT, 0.8),
    Case("mooncake-4-unknown", MOONCAKE, "4*h100", 0.3, slower=(1.0, 2.0, 4.0, 8.0)),
    Case("mooncake-64-mixed", MOONCAKE, MIXED, 3.0),
    Case("mooncake-1000-mixed", MOONCAKE, THOUSAND, 3.0, copies=16),
    Case(
        "invoices-and-contracts",
        "rate=6,requests=4000;invoices:share=9,input=700,output=16;contracts:share=1,input=6000,output=1500",
        "4*h100",
        slots=4,
    ),
)


class Part:
    """Some of the requests of other traffic, several times over each other."""

    def __init__(self, traffic: Traffic, first: int, last: int, copies: int = 1) -> None:
        self._traffic = traffic
        self._first = first
        self._last = last
        self._copies = copies
        self.block_tokens = traffic.block_tokens

    def jobs(self) -> Iterator[Job]:
        """See :class:`~gateway.tools.simulate.inputs.Traffic`."""
        found = list(islice(self._traffic.jobs(), self._first, self._last))
        if not found:
            return iter(())
        begin_s, span_s = found[0].at_s, found[-1].at_s - found[0].at_s
        found = [replace(job, at_s=job.at_s - begin_s) for job in found]
        if self._copies == 1:
            return iter(found)
        copies = [self._copy(found, number, span_s) for number in range(self._copies)]
        return heapq.merge(*copies, key=lambda job: job.at_s)

    def _copy(self, jobs: list[Job], number: int, span_s: float) -> Iterator[Job]:
        begin = len(jobs) * number // self._copies
        turned = jobs[begin:] + jobs[:begin]
        for place, job in enumerate(turned):
            at_s = job.at_s - turned[0].at_s + (span_s if place >= len(jobs) - begin else 0.0)
            yield replace(job, at_s=at_s, prefix=tuple(number << 40 | block for block in job.prefix))


@dataclass(frozen=True, slots=True)
class Settings:
    policies: str = POLICIES
    data: Path = Path("../shared/data")
    half: str = "second"
    most: int | None = None
    """Requests of each case."""
    seed: int = 7
    spread: float = 0.0


def plan_of(case: Case, settings: Settings) -> SimulationPlan:
    """Raises FileNotFoundError without the trace."""
    requests = settings.most or (SLICE if case.copies == 1 else MOST)
    if case.source in LENGTHS:
        path = settings.data / case.source
        if not path.exists():
            raise FileNotFoundError(path)
        middle = LENGTHS[case.source] // 2
        first, last = (0, middle) if settings.half == "first" else (middle, LENGTHS[case.source])
        traffic: Traffic = Part(TraceFile(path), first, last, case.copies)
    else:
        traffic = Mix(case.source, settings.seed)
    return SimulationPlan(
        traffic,
        fleet_of(case.fleet),
        MODELS[DEFAULT_MODEL],
        seed=settings.seed,
        rate=case.rate,
        requests=requests,
        build=DeploymentBuild(slots=case.slots, spread=settings.spread, slower=case.slower),
    )


def pooled(plan: SimulationPlan) -> SimulationPlan:
    """The same on one device that computes as much as all together, and lets nobody overtake: how long first
    tokens take however well prompts are shared out, where all are read in the order in which they came."""
    known = [
        pace_of(device_named(group.card), plan.model) for group in plan.fleet for _ in range(group.count)
    ]
    paces = [slowed(pace, times, times) for pace, times in zip(known, cycle(plan.build.slower), strict=False)]
    all_as_one = DevicePace(
        step_s=1e-6,
        weights_s=1e-9,
        token_s=1 / sum(1 / pace.token_s for pace in paces),
        context_s=1e-12,
        pair_s=1 / sum(1 / pace.pair_s for pace in paces),
        kv_tokens=sum(pace.kv_tokens for pace in paces),
        chunk_tokens=16_384,
        max_running=8192,
        load_s=1.0,
    )
    return replace(plan, fleet=(DeviceGroup(1, "all"),), build=DeploymentBuild(own={"all": all_as_one}))


def run(cases: Sequence[Case], settings: Settings) -> "Table":
    """Told on stderr as it goes."""
    found: dict[str, dict[str, Any]] = {}
    bounds: dict[str, dict[str, float]] = {}
    for case in cases:
        plan = plan_of(case, settings)
        found[case.name] = {}
        if case.source == AZURE:  # nothing of its prompts is shared, so to read them is all there is to do
            (in_order,) = choices("round-robin")
            bounds[case.name] = simulate(pooled(plan), in_order).as_json()["ttft_s"]
        for choice in choices(settings.policies):
            began_s = time.process_time()
            found[case.name][choice.name] = simulate(plan, choice).as_json()
            took_s = time.process_time() - began_s
            found[case.name][choice.name]["cpu_s"] = took_s
            sys.stderr.write(f"{case.name} {choice.name}: {took_s:.1f} s\n")
            sys.stderr.flush()
    return Table(settings, {case.name: case for case in cases}, found, bounds)


@dataclass(frozen=True, slots=True)
class Table:
    """What ``--json`` of the simulator prints, by case and policy."""

    settings: Settings
    cases: Mapping[str, Case]
    found: Mapping[str, Mapping[str, Any]]
    bounds: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    """Times to the first token of :func:`pooled`, by case."""

    def __str__(self) -> str:
        """Markdown."""
        return "\n\n".join(f"{self._title(name)}\n\n{_table(self.found[name])}" for name in self.found)

    def to_json(self) -> str:
        settings = self.settings
        how = {
            "half": settings.half,
            "seed": settings.seed,
            "spread": settings.spread,
            "most": settings.most,
        }
        return json.dumps({"settings": how, "cases": self.found, "pooled_ttft_s": self.bounds}, indent=1)

    def plot(self, folder: Path) -> None:
        """A drawing of each case."""
        for name, policies in self.found.items():
            heading = Heading(f"Simulated scheduling policies: {name}", self._setting(name))
            write_plot(folder / f"simulated-{name}.svg", policies, heading)

    def _setting(self, name: str) -> tuple[str, str]:
        """The fleet and the traffic of a case."""
        case, requests = self.cases[name], next(iter(self.found[name].values()))["requests"]
        slots = "" if case.slots is None else f", {case.slots} slots each"
        copies = "" if case.copies == 1 else f", {case.copies} copies over each other"
        times = f", {case.rate:g} times as fast as recorded" if case.source in LENGTHS else ""
        return f"Fleet: {case.fleet}{slots}", f"Traffic: {case.source}, {requests:,} requests{times}{copies}"

    def _title(self, name: str) -> str:
        case, policies = self.cases[name], self.found[name]
        requests = next(iter(policies.values()))["requests"]
        copies = f", {case.copies} copies over each other" if case.copies > 1 else ""
        rate = f" x {case.rate:g}" if case.source in LENGTHS else ""
        slots = f", {case.slots} slots each" if case.slots is not None else ""
        slower = (
            f", slower by {', '.join(f'{each:g}' for each in case.slower)}" if len(case.slower) > 1 else ""
        )
        fleet = f"`{case.fleet}`{slots}{slower}"
        said = f"**{name}**: {requests:,} requests{rate}{copies}, {fleet}. {verdict(policies)}"
        bound = self.bounds.get(name)
        if bound is None:
            return said
        return f"{said} In order on one device as fast as all: TTFT {_times(bound)} s."


def verdict(policies: Mapping[str, Any]) -> str:
    """How far ``cost`` is from the best of the others at each goal; empty without it or without others."""
    others = {name: each for name, each in policies.items() if name not in ("cost", "clairvoyant")}
    if "cost" not in policies or not others:
        return ""
    cost, said = policies["cost"], []
    for of, label in (("ttft_s", "TTFT p99"), ("latency_s", "latency p99")):
        best = min(others, key=lambda name: others[name][of]["p99"])
        change = cost[of]["p99"] / others[best][of]["p99"] - 1
        said.append(f"{label} {change:+.0%} beside {best}")
    if "clairvoyant" in policies:
        share = cost["goodput_rps"] / max(policies["clairvoyant"]["goodput_rps"], 1e-9) - 1
        said.append(f"goodput {share:+.0%} beside the clairvoyant")
    return f"`cost`: {', '.join(said)}."


def _table(policies: Mapping[str, Any]) -> str:
    head = (
        "| policy | TTFT p50, p95, p99 (s) | latency p50, p95, p99 (s) | busy | cv | cv in 10 s | good/s | "
    )
    lines = [head + "hits | refused |", "| --- " * 9 + "|"]
    for name, each in policies.items():
        times = [_times(each[of]) for of in ("ttft_s", "latency_s")]
        lines.append(
            f"| `{name}` | {times[0]} | {times[1]} | {each['utilisation']:.0%} | "
            f"{each['utilisation_cv']:.2f} | {each['utilisation_window_cv']:.2f} | "
            f"{each['goodput_rps']:.2f} | {each['prefix_hit_rate']:.0%} | {each['rejected']} |"
        )
    return "\n".join(lines)


def _times(seconds: Mapping[str, float]) -> str:
    return ", ".join(f"{value:.2f}" for value in seconds.values())


# --- The load ---


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--small", action="store_true", help="policies: a few requests of each case")
    parser.add_argument("--slice", type=int, metavar="N", help="policies: so many requests of each case")
    parser.add_argument(
        "--half", choices=("first", "second"), default="second", help="policies: of the traces"
    )
    parser.add_argument("--spread", type=float, default=0.0, help="policies: as of trunkline simulate")
    parser.add_argument("--seed", type=int, default=7, help="policies")
    parser.add_argument("--policy", default=POLICIES, help="policies: which, joined by commas")
    parser.add_argument("--case", action="append", metavar="NAME", help="policies: only these cases")
    parser.add_argument("--data", type=Path, default=Path("../shared/data"), help="policies: the traces")
    parser.add_argument("--plots", type=Path, metavar="FOLDER", help="policies: draw each case")


def load(arguments: argparse.Namespace) -> object:
    """The table; what is missing, where a trace is not there."""
    settings = Settings(
        policies=arguments.policy,
        data=arguments.data,
        half=arguments.half,
        most=SMALL if arguments.small else arguments.slice,
        seed=arguments.seed,
        spread=arguments.spread,
    )
    wanted = [case for case in CASES if not arguments.case or case.name in arguments.case]
    try:
        table = run(wanted, settings)
    except FileNotFoundError as missing:
        return f"not run: there is no {missing}; --data says where the traces are"
    if arguments.json is not None:
        arguments.json.write_text(table.to_json())
    if arguments.plots is not None:
        table.plot(arguments.plots)
    return table
