"""How it goes, meanwhile: on a terminal one line, written again and again, else a line now and then."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import TextIO

from gateway.bench.driver import Driver
from gateway.bench.plan import Plan
from gateway.bench.report import duration, rate
from gateway.bench.tally import Tally

TERMINAL_S = 0.25
PLAIN_S = 5.0
_CLEAR_LINE = "\r\x1b[K"


def line_of(tally: Tally, plan: Plan, elapsed_s: float) -> str:
    """Where it stands, ``elapsed_s`` after counting began."""
    if elapsed_s < 0:
        return f"warm-up, {-elapsed_s:.0f} s left; {tally.running} running"
    over_s = max(elapsed_s, 1e-3) if plan.duration_s is None else max(min(elapsed_s, plan.duration_s), 1e-3)
    whole = f" of {plan.duration_s:.0f}" if plan.duration_s is not None else ""
    parts = [f"{elapsed_s:.0f}{whole} s", f"{tally.running} running", f"{tally.right} right"]
    parts += [f"{tally.failed} failed"] if tally.failed else []
    parts.append(f"{rate(tally.window_answers / over_s)} requests/s")
    if plan.stream:
        parts.append(f"{rate(tally.window_events / over_s)} tokens/s")
    if tally.first.count:
        parts.append(f"first token p50 {duration(tally.first.percentile_s(0.5))}")
    return ", ".join(parts)


@contextlib.asynccontextmanager
async def shown(driver: Driver, plan: Plan, stream: TextIO) -> AsyncIterator[None]:
    """Tell it on ``stream`` meanwhile; a stream that cannot be written is no reason to stop."""
    task = asyncio.create_task(_show(driver, plan, stream))
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        if stream.isatty():
            _write(stream, _CLEAR_LINE)


async def _show(driver: Driver, plan: Plan, stream: TextIO) -> None:
    terminal = stream.isatty()
    while True:
        await asyncio.sleep(TERMINAL_S if terminal else PLAIN_S)
        line = line_of(driver.tally, plan, driver.elapsed_s)
        _write(stream, f"{_CLEAR_LINE}{line}" if terminal else f"{line}\n")


def _write(stream: TextIO, text: str) -> None:
    with contextlib.suppress(OSError):
        stream.write(text)
        stream.flush()
