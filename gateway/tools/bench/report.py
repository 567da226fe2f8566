"""The figures of a bench, for people and for programs, and its progress."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Any, TextIO

from gateway.cli_support.console import StatusLine
from gateway.tools.bench.driver import Driver
from gateway.tools.bench.plan import BenchPlan, BenchRoute, BenchTarget
from gateway.tools.bench.tally import BenchTally

TERMINAL_S = 0.25
PLAIN_S = 5.0
"""Seconds between two reports of progress, on a terminal and elsewhere."""
_BUSY_SHARE = 0.85
"""The share of a core above which the load generator itself may be what is measured."""
_LATE_S = 0.005


def bench_figures(driver: Driver, plan: BenchPlan, target: BenchTarget, model: str) -> dict[str, Any]:
    """Everything measured. Times are seconds; what was not measured is None."""
    tally, window_s = driver.tally, driver.window_s
    counted_by_server = tally.right > tally.uncounted
    share = tally.completion_tokens / tally.events if counted_by_server and tally.events else 1.0
    per_s: Callable[[float], float | None] = lambda count: count / window_s if window_s else None  # noqa: E731
    return {
        "target": {"url": target.url, "model": model, "route": plan.route.value, "stream": plan.stream},
        "load": {
            "loop": "closed" if plan.rate is None else "open",
            "concurrency": plan.most_running,
            "rate_per_s": plan.rate,
            "arrivals": None if plan.rate is None else plan.arrivals.value,
            "warmup_s": plan.warmup_s,
            "seed": plan.seed,
        },
        "window_s": window_s,
        "requests": {
            "right": tally.right,
            "failed": tally.failed,
            "cut": tally.cut,
            "per_s": per_s(tally.window_answers),
        },
        "tokens": {
            "prompt": tally.prompt_tokens,
            "completion": tally.completion_tokens,
            "per_s": per_s(tally.window_events * share) if plan.stream else None,
            "counted_by": "server" if counted_by_server else "events",
        },
        "latency_s": tally.latency.summary_s(),
        "first_token_s": tally.first.summary_s(),
        "gap_s": tally.gaps.summary_s(),
        "start_delay_s": tally.delay.summary_s(),
        "errors": dict(tally.errors.most_common()),
        "error_examples": dict(tally.examples),
        "load_cpu_share": driver.cpu_share,
    }


def times_table(figures: dict[str, Any]) -> list[list[str]]:
    """Rows of a name and its times: mean, p50, p90, p95, p99, max."""
    names = {"first_token_s": "first token", "gap_s": "between tokens", "latency_s": "whole answer"}
    columns = ("mean", "p50", "p90", "p95", "p99", "max")
    return [
        [text, *(duration_text(figures[name][column]) for column in columns)]
        for name, text in names.items()
        if figures[name] is not None
    ]


TABLE_COLUMNS = ("", "MEAN", "P50", "P90", "P95", "P99", "MAX")


def summary_lines(figures: dict[str, Any]) -> list[str]:
    """What stands above the table."""
    requests, tokens = figures["requests"], figures["tokens"]
    counts = [f"{requests['right']} right", f"{requests['failed']} failed"]
    counts += [f"{requests['cut']} cut off"] if requests["cut"] else []
    per_s = rate_text(requests["per_s"])
    lines = [f"requests   {', '.join(counts)}; {per_s} a second over {figures['window_s']:.1f} s"]
    if figures["errors"] and not requests["right"]:
        return lines
    if figures["target"]["route"] == BenchRoute.EMBEDDINGS:
        lines.append(f"tokens     {tokens['prompt']} of prompts")
    elif tokens["per_s"] is not None:
        whose = "" if tokens["counted_by"] == "server" else " (events; the server counts none)"
        lines.append(f"tokens     {rate_text(tokens['per_s'])} a second{whose}")
    elif tokens["completion"]:
        lines.append(f"tokens     {tokens['completion']} of answers, {tokens['prompt']} of prompts")
    return lines


def warnings_of(figures: dict[str, Any]) -> list[str]:
    """Errors, and what makes the figures doubtful."""
    lines = []
    for kind, count in figures["errors"].items():
        lines.append(f"{count} × {kind}: {figures['error_examples'].get(kind, '')}".rstrip(": "))
    if figures["load_cpu_share"] > _BUSY_SHARE:
        share = figures["load_cpu_share"]
        lines.append(f"the load itself used {share:.0%} of a core: latencies may be its own; run several")
    if not figures["requests"]["right"] and not figures["requests"]["failed"]:
        lines.append(
            "no request both began while it counted and ended: an answer takes longer than --duration"
        )
    delay = figures["start_delay_s"]
    if figures["load"]["loop"] == "open" and delay is not None and delay["p99"] > _LATE_S:
        late = duration_text(delay["p99"])
        lines.append(
            f"1 % of the requests were sent {late} or more after they were meant to be (latencies count it): "
            f"the endpoint, --concurrency {figures['load']['concurrency']} or this machine did not keep up"
        )
    return lines


def duration_text(seconds: float) -> str:
    """``seconds`` in the unit that fits."""
    if seconds >= 1:
        return f"{seconds:.2f} s"
    return f"{seconds * 1e3:.1f} ms" if seconds >= 0.001 else f"{seconds * 1e6:.0f} µs"


def rate_text(per_s: float | None) -> str:
    if per_s is None:
        return "–"
    return f"{per_s:,.0f}" if per_s >= 100 else f"{per_s:.1f}"


def line_of(tally: BenchTally, plan: BenchPlan, elapsed_s: float) -> str:
    """Where it stands, ``elapsed_s`` after counting began."""
    if elapsed_s < 0:
        return f"warm-up, {-elapsed_s:.0f} s left; {tally.running} running"
    over_s = max(elapsed_s, 1e-3) if plan.duration_s is None else max(min(elapsed_s, plan.duration_s), 1e-3)
    whole = f" of {plan.duration_s:.0f}" if plan.duration_s is not None else ""
    parts = [f"{elapsed_s:.0f}{whole} s", f"{tally.running} running", f"{tally.right} right"]
    parts += [f"{tally.failed} failed"] if tally.failed else []
    parts.append(f"{rate_text(tally.window_answers / over_s)} requests/s")
    if plan.stream:
        parts.append(f"{rate_text(tally.window_events / over_s)} tokens/s")
    if tally.first.count:
        parts.append(f"first token p50 {duration_text(tally.first.percentile_s(0.5))}")
    return ", ".join(parts)


@contextlib.asynccontextmanager
async def progress_shown(driver: Driver, plan: BenchPlan, stream: TextIO) -> AsyncIterator[None]:
    """Write the progress to ``stream`` while the context lasts."""
    line = StatusLine(stream)
    task = asyncio.create_task(_show(driver, plan, line))
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        line.clear()


async def _show(driver: Driver, plan: BenchPlan, line: StatusLine) -> None:
    while True:
        await asyncio.sleep(TERMINAL_S if line.in_place else PLAIN_S)
        line.show(line_of(driver.tally, plan, driver.elapsed_s))
