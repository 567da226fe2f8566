"""Many paced streams at once through one agent."""

import asyncio
from dataclasses import dataclass

from tests.bench.clients import Reading, chat_request, open_stream
from tests.bench.figures import cpu_s, mebibytes, milliseconds, percentile
from tests.bench.site import MODEL, LoadSite
from tests.support.leaks import rss_bytes

_RAMP_PER_S = 250
"""New streams a second, so that the start is not the load."""


@dataclass(frozen=True, slots=True)
class Concurrent:
    """Figures of one run; gaps are between a client's reads that brought tokens."""

    streams: int
    complete: int
    peak_running: int
    tokens: int
    gap_p50_s: float
    gap_p99_s: float
    lateness_p50_s: float
    lateness_p99_s: float
    gateway_cpu_s: float
    agent_cpu_s: float
    gateway_rss_bytes: int
    agent_rss_bytes: int

    def __str__(self) -> str:
        microseconds = 1e6 / max(1, self.tokens)
        return "\n".join(
            [
                f"streams complete        {self.complete} of {self.streams}",
                f"at once in the engine   {self.peak_running}",
                f"tokens                  {self.tokens}",
                f"gap p50, p99            {milliseconds(self.gap_p50_s)}, {milliseconds(self.gap_p99_s)}",
                f"engine to client p50    {milliseconds(self.lateness_p50_s)}",
                f"engine to client p99    {milliseconds(self.lateness_p99_s)}",
                f"gateway CPU per token   {self.gateway_cpu_s * microseconds:.1f} µs",
                f"agent CPU per token     {self.agent_cpu_s * microseconds:.1f} µs",
                f"gateway RSS             {mebibytes(self.gateway_rss_bytes)}",
                f"agent RSS               {mebibytes(self.agent_rss_bytes)}",
            ]
        )


async def run(site: LoadSite, streams: int, tokens_per_s: float, seconds: float) -> Concurrent:
    """``streams`` at once, each ``seconds`` long after the last has begun."""
    ramp_s = streams / _RAMP_PER_S
    tokens = int((seconds + ramp_s) * tokens_per_s)
    request = chat_request(
        site.key, MODEL, tokens=tokens, tokens_per_s=tokens_per_s, pad_bytes=24, stamp=True
    )
    pids = (site.gateway.child.pid, site.agent.pid)
    before = [cpu_s(pid) for pid in pids]
    opened = []
    for _ in range(streams):
        opened.append(await open_stream(site.gateway.port, request))
        await asyncio.sleep(1 / _RAMP_PER_S)
    rss = [0, 0]
    async with asyncio.TaskGroup() as tasks:
        readings = [tasks.create_task(stream.finished()) for stream in opened]
        await asyncio.sleep(seconds / 2)
        rss = [rss_bytes(pid) for pid in pids]
    spent = [cpu_s(pid) - begun for pid, begun in zip(pids, before, strict=True)]
    peak = int((await asyncio.to_thread(site.engine.stats))["peak_running"])
    return _figures([task.result() for task in readings], tokens, peak, spent, rss)


def _figures(
    readings: list[Reading], wanted: int, peak: int, spent: list[float], rss: list[int]
) -> Concurrent:
    gaps = [gap for reading in readings for gap in reading.gaps_s or ()]
    lateness = [late for reading in readings for late in reading.lateness_s or ()]
    return Concurrent(
        streams=len(readings),
        complete=sum(reading.done and reading.tokens >= wanted for reading in readings),
        peak_running=peak,
        tokens=sum(reading.tokens for reading in readings),
        gap_p50_s=percentile(gaps, 0.5),
        gap_p99_s=percentile(gaps, 0.99),
        lateness_p50_s=percentile(lateness, 0.5),
        lateness_p99_s=percentile(lateness, 0.99),
        gateway_cpu_s=spent[0],
        agent_cpu_s=spent[1],
        gateway_rss_bytes=rss[0],
        agent_rss_bytes=rss[1],
    )
