"""The rounds, and what they measured."""

import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gateway.tools.quickstart.processes import ProcessEnded
from tests.bench.peers.known import PEERS
from tests.bench.peers.machine import Cores, cores, facts, family, forget_peak, pinned, usage
from tests.bench.peers.stage import Peer, Running, Stage
from tests.bench.peers.tools import PlainEngine, Tools, built, start_engine
from tests.bench.peers.workloads import Scale, Workload, workloads
from tests.support.processes import House

_SETTLE_S = 0.3
_KEPT_UP = 0.97
_TIMES = ("latency_us", "first_token_us", "gap_us", "one_way_us")

Figures = dict[str, Any]
"""Of one workload through one peer, or their medians: numbers, and dicts of numbers by role or percentile."""


@dataclass(slots=True)
class Results:
    """Everything measured in one run."""

    scale: Scale
    workloads: tuple[Workload, ...]
    rounds: int
    machine: dict[str, object]
    when: str
    versions: dict[str, str] = field(default_factory=dict)
    skipped: dict[str, str] = field(default_factory=dict)
    """Peer → why it was not run."""
    failed: list[str] = field(default_factory=list)
    samples: list[tuple[int, str, str, Figures]] = field(default_factory=list)
    """Round, peer, workload, figures."""
    gateway_apart: bool = False
    """The far end of a tunnel shared no core with its near end."""

    def peers(self) -> list[str]:
        """Those that have figures, in the order of the tables."""
        have = {peer for _, peer, _, _ in self.samples}
        return [peer.name for peer in PEERS if peer.name in have]

    def others_cores(self) -> float:
        """How many cores other programs kept busy meanwhile; the median of all samples."""
        seen = [float(each["others_cores"]) for _, _, _, each in self.samples if "others_cores" in each]
        return statistics.median(seen) if seen else 0.0

    def of(self, peer: str, workload: str) -> Figures | None:
        """Medians over the rounds; None without figures."""
        found = [each for _, who, what, each in self.samples if (who, what) == (peer, workload)]
        return median_of(found) if found else None


def median_of(figures: Sequence[Figures]) -> Figures:
    """The median of each number that all of them have."""
    middle: Figures = {}
    for name, first in figures[0].items():
        values = [each[name] for each in figures if name in each]
        if isinstance(first, dict):
            middle[name] = median_of(values)
        elif len(values) == len(figures) and not isinstance(first, str):
            middle[name] = statistics.median(values)
    return middle


def run(
    names: Sequence[str],
    scale: Scale,
    rounds: int,
    only: Sequence[str] = (),
    say: Callable[[str], None] | None = None,
    *,
    gateway_apart: bool = False,
) -> Results:
    """Compare those peers (all if empty) under all workloads, or ``only`` those. There must be a compiler.
    ``gateway_apart``: what of a tunnel runs at its far end shares no core with what takes requests."""
    chosen = tuple(each for each in workloads(scale) if not only or each.name in only)
    when = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime())
    results = Results(scale, chosen, rounds, facts().to_dict(), when, gateway_apart=gateway_apart)
    wanted = []
    for peer in PEERS:
        if names and peer.name not in names:
            continue
        reason = peer.missing()
        if reason is None:
            wanted.append(peer)
            results.versions[peer.name] = peer.version()
        else:
            results.skipped[peer.name] = reason
    tools, said = built(), say or _say
    for number in range(rounds):
        for peer in wanted if number % 2 == 0 else reversed(wanted):
            _one(results, number, peer, tools, said)
    return results


def _say(line: str) -> None:
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()


def _one(results: Results, number: int, peer: Peer, tools: Tools, say: Callable[[str], None]) -> None:
    """One round of one peer. What fails is noted, and the run goes on."""
    with tempfile.TemporaryDirectory(prefix="trunkline-peer-") as directory:
        house = House(Path(directory))
        try:
            with house:
                _put_through(house, results, number, peer, tools, say)
        except AssertionError:
            if not house.children.killed:
                raise
            names = ", ".join(child.name for child in house.children.killed)
            results.failed.append(f"{peer.name}, round {number + 1}: did not stop when asked to: {names}")


def _put_through(
    house: House, results: Results, number: int, peer: Peer, tools: Tools, say: Callable[[str], None]
) -> None:
    where = cores(gateway_apart=results.gateway_apart)
    try:
        with pinned(where.load):
            engine = start_engine(tools, house)
        running = peer.bring_up(Stage(house, tools, where, engine.port))
        _warm(tools, running, where, results.scale.warm_s)
    except (ProcessEnded, RuntimeError) as error:
        words = str(error).splitlines()
        results.failed.append(f"{peer.name}, round {number + 1}: {' … '.join(words[:1] + words[1:][-1:])}")
        say(f"{peer.name}, round {number + 1}: {error}")
        return
    for workload in results.workloads:
        if workload.name in peer.without:
            continue
        figures = measure(tools, where, engine, running, workload)
        say(f"{number + 1}/{results.rounds} {peer.name:14} {workload.name:10} {_short(figures)}")
        if _valid(figures, workload):
            results.samples.append((number, peer.name, workload.name, figures))
        else:
            results.failed.append(f"{peer.name}, {workload.name}, round {number + 1}: {_why(figures)}")


def fell_behind(figures: Figures) -> bool:
    """Whether it did not pass tokens on at the pace they came: what a token costs then is that of a crowd.

    Also when as many came as were sent, but half of them later than the token after them was due: a backlog.
    """
    late = figures.get("one_way_us", {}).get("p50", 0.0) > figures.get("interval_us", float("inf"))
    return bool(late or figures.get("kept_up", 1.0) < _KEPT_UP)


def _why(figures: Figures) -> str:
    return (
        f"nothing right came; {figures['errors']} errors, the last {figures['error'] or 'a lost connection'}"
    )


def _valid(figures: Figures, workload: Workload) -> bool:
    return bool(figures["tokens_per_s" if workload.kind == "stream" else "per_s"])


def _warm(tools: Tools, running: Running, where: Cores, seconds: float) -> None:
    with pinned(where.load):
        tools.ask("unary", *running.target, "-c", "8", "-w", "0", "-d", f"{seconds:g}")
        tools.ask("stream", *running.target, "-c", "8", "-n", "50", "-w", "0", "-d", f"{seconds:g}")


def measure(tools: Tools, where: Cores, engine: PlainEngine, running: Running, workload: Workload) -> Figures:
    """Put it through one workload."""
    engine.direct(interval_us=workload.interval_us, step=int(workload.step))
    roles = {role: family(pid) for role, pid in running.roles.items()}
    everybody = [pid for pids in roles.values() for pid in pids]
    for pid in everybody:
        forget_peak(pid)
    watched = ",".join(map(str, [*everybody, engine.pid]))
    before = usage([*everybody, engine.pid])
    with pinned(where.load):
        seen = tools.ask(workload.kind, *running.target, "-p", watched, *workload.arguments, timeout_s=240.0)
    figures = figures_of(seen, roles, workload)
    figures["others_cores"] = usage([*everybody, engine.pid]).others_cores(before)
    engine_use = seen["processes"][str(engine.pid)]
    figures["engine_cores"] = (engine_use["user_s"] + engine_use["system_s"]) / seen["seconds"]
    engine.direct(interval_us=0, step=0)
    time.sleep(_SETTLE_S)
    return figures


def figures_of(seen: Mapping[str, Any], roles: Mapping[str, Sequence[int]], workload: Workload) -> Figures:
    """From what the load said; ``roles`` are the processes of each."""
    units = {"token": seen["tokens"], "request": seen["right"]}.get(
        workload.unit, seen["right"] * _body_bytes(workload) / 1e9
    )

    def total(role: str, *names: str) -> float:
        return float(sum(seen["processes"][str(pid)][name] for pid in roles[role] for name in names))

    figures: Figures = {
        "seconds": seen["seconds"],
        "per_s": seen["right"] / seen["seconds"],
        "tokens_per_s": seen["tokens"] / seen["seconds"],
        "errors": sum(seen["errors"].values()),
        "error": f"{seen['last_status']} {seen['error_text']}" if seen["last_status"] else "",
        "load_cores": seen["own_cores"],
        **{name: dict(seen[name]) for name in _TIMES if seen[name]["count"]},
        "rss_mb": {role: total(role, "rss_bytes") / 1e6 for role in roles},
        "peak_rss_mb": {role: total(role, "peak_rss_bytes") / 1e6 for role in roles},
    }
    if workload.tokens_per_s:
        figures["kept_up"] = figures["tokens_per_s"] / workload.tokens_per_s
        figures["interval_us"] = workload.interval_us
    if units and roles:
        figures["cpu_us"] = {role: total(role, "user_s", "system_s") / units * 1e6 for role in roles}
        figures["cpu_us_total"] = sum(figures["cpu_us"].values())
    if workload.kind in ("down", "up"):
        figures["mb_per_s"] = units * 1000 / seen["seconds"]
    return figures


def _body_bytes(workload: Workload) -> int:
    arguments = workload.arguments
    return int(arguments[arguments.index("-B") + 1]) if "-B" in arguments else 0


def _short(figures: Figures) -> str:
    cpu = " ".join(f"{role} {value:.1f}" for role, value in figures.get("cpu_us", {}).items())
    rate = figures["tokens_per_s"] or figures["per_s"]
    middle = figures.get("first_token_us") or figures.get("latency_us") or {"p50": -1, "p99": -1}
    remarks = f" ERRORS {figures['errors']}" if figures["errors"] else ""
    remarks += " FELL BEHIND" if fell_behind(figures) else ""
    times = f"p50 {middle['p50']:.0f} p99 {middle['p99']:.0f} us"
    return f"{rate:10.1f}/s  {times}  CPU us: {cpu or '-'}{remarks}"
