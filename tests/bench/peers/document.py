"""The figures in a document: a marked block of it is written anew, a chart beside it."""

from pathlib import Path

from tests.bench.peers.chart import Bar, Panel, draw
from tests.bench.peers.known import DIRECT, OURS
from tests.bench.peers.machine import facts
from tests.bench.peers.report import (
    APART,
    BEHIND,
    PACED_CPU,
    STEP_CPU,
    UNARY_CPU,
    Column,
    Goal,
    goals,
    number,
    rows,
)
from tests.bench.peers.run import Results
from tests.bench.written import write_block

_CALM_CORES = 0.1
_DISTURBED = ": **latencies and what fell behind say as much of them as of what was measured**."


def write(results: Results, document: Path) -> None:
    """Replace what stands between the marks. Raises ValueError if the document has none."""
    chart = document.with_suffix(".svg")
    write_block(document, "peers", block(results, chart.name))
    chart.write_text(draw(panels(results)), "utf-8")


def block(results: Results, chart: str) -> str:
    """Machine, table, chart, goals, and what was not run."""
    table = rows(results)
    lines = [
        f"Measured {results.when}: {facts()}. Medians of {results.rounds} rounds, windows of "
        f"{results.scale.seconds:g} s. Other programs kept {results.others_cores():.2f} cores busy meanwhile"
        f"{_DISTURBED if results.others_cores() > _CALM_CORES else '.'}",
        "",
        f"![CPU time per token and per request, ours and the peers']({chart})",
        "",
        "| " + " | ".join(table[0]) + " |",
        "| --- |" + " ---: |" * (len(table[0]) - 1),
        *("| " + " | ".join(row) + " |" for row in table[1:]),
        "",
        *(f"- *{each.name}*: {each.about}." for each in results.workloads),
        *([f"- {APART}."] if results.gateway_apart else []),
        f"- {BEHIND.replace('*', chr(92) + '*', 1)}.",
        "",
        "Versions: " + "; ".join(version for version in results.versions.values() if version) + ".",
        "",
        "| goal | measured | bound | |",
        "| --- | ---: | ---: | --- |",
        *(_goal_row(goal) for goal in goals(results)),
    ]
    if results.skipped:
        lines += ["", *(f"Not run: {peer} ({reason})." for peer, reason in results.skipped.items())]
    if results.failed:
        lines += ["", *(f"Failed: {each}." for each in results.failed)]
    return "\n".join(lines)


def _goal_row(goal: Goal) -> str:
    verdict = {True: "met", False: "**missed**", None: "not comparable"}[goal.met]
    sign = "≥" if goal.at_least else "≤"
    return f"| {goal.text} | {number(goal.measured)} | {sign} {number(goal.bound)} | {verdict} |"


def panels(results: Results) -> list[Panel]:
    """What each costs per token and per request."""

    def panel(title: str, column: Column) -> Panel:
        bars = []
        for peer in results.peers():
            figures = results.of(peer, column.workload)
            if peer != DIRECT and figures is not None and figures.get("cpu_us"):
                bars.append(Bar(peer, list(figures["cpu_us"].items()), peer == OURS))
        return Panel(title, bars)

    return [
        panel("CPU µs per token, paced streams (gateway + agent; others: all their processes)", PACED_CPU),
        panel("CPU µs per token, all streams ticking together", STEP_CPU),
        panel("CPU µs per request, 1 KB in, 1 KB out", UNARY_CPU),
    ]
