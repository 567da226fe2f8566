"""What the dashboard costs: a browser's frames and main thread, and the gateway's CPU for the stream.

A gateway, five hundred whole agents with two deployments each, and requests at 10,000 a minute; then Chromium
with one page after the other. The gateway's share for the stream is the difference to the same load without a
page. What the main thread has to do in each frame is Chromium's own figure of it
(``Performance.getMetrics``, in CPU time), so it says something even where other programs take the cores. At
last a page is told ten thousand frames as fast as it takes them, and its heap must not grow.
"""

import asyncio
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from gateway.domain.scopes import AdminRole
from tests.bench.crowd import Crowd, start_agents, start_gateway
from tests.bench.figures import cpu_s, percentile
from tests.support.browser import Browser, chromium
from tests.support.processes import House
from tests.support.staged_gateway import KEY, StagedGateway, fleet

PAGES = ("fleet", "flow", "models", "alerts")
_COUNT = """
async (seconds) => {
    const { live } = await import("./js/live.js");
    const [gaps, tasks, deltas] = [[], [], live.frames];
    const take = (list) => tasks.push(...list.getEntries().map((each) => each.duration));
    const observer = new PerformanceObserver(take);
    observer.observe({ type: "longtask" });
    await new Promise((done) => {
        let last = performance.now();
        const end = last + seconds * 1000;
        const step = (now) => {
            gaps.push(now - last);
            last = now;
            if (now < end) requestAnimationFrame(step);
            else done();
        };
        requestAnimationFrame(step);
    });
    observer.disconnect();
    return { gaps, tasks, deltas: live.frames - deltas };
}
"""
"""Frames of the screen as the page sees them: the gaps between them, and tasks that took 50 ms or longer."""


@dataclass(frozen=True, slots=True)
class DashboardSizes:
    """How much is shown and for how long each page is looked at."""

    agents: int = 500
    """Each has two deployments."""
    requests_per_min: int = 10_000
    seconds: float = 20.0
    tokens: int = 20
    heap_frames: int = 10_000
    settle_s: float = 3.0
    """Before a page is looked at."""


@dataclass(frozen=True, slots=True)
class PageCost:
    """Of one page that is open."""

    page: str
    frames_per_s: float
    gap_p99_ms: float
    """Between two frames of the screen; 16.7 is what 60 Hz allow."""
    main_ms_per_frame: float
    """CPU of the main thread for each frame: script, style, layout, painting. 60 Hz leave 16.7."""
    script_ms_per_frame: float
    longest_task_ms: float
    """0: none took 50 ms."""
    deltas_per_s: float
    heap_mib: float
    renderer_cores: float

    def __str__(self) -> str:
        return (
            f"{self.page:<8} {self.frames_per_s:8.1f} {self.gap_p99_ms:8.1f} {self.main_ms_per_frame:9.2f} "
            f"{self.script_ms_per_frame:7.2f} {self.longest_task_ms:8.0f} {self.deltas_per_s:8.2f} "
            f"{self.heap_mib:9.1f} {self.renderer_cores:9.2f}"
        )


@dataclass(frozen=True, slots=True)
class DashboardCost:
    """Of one run. The gateway's are cores."""

    deployments: int
    requests_per_min: float
    pages: list[PageCost] = field(default_factory=list)
    gateway_alone: float = 0.0
    gateway_with_page: float = 0.0
    heap_mib: list[tuple[int, float]] = field(default_factory=list)
    """After so many frames, with the garbage collected."""

    def __str__(self) -> str:
        stream = self.gateway_with_page - self.gateway_alone
        heap = ", ".join(f"{mib:.1f} MiB after {frames:,}" for frames, mib in self.heap_mib)
        head = f"{'page':<8} {'frames/s':>8} {'p99 ms':>8} {'main ms/f':>9} {'script':>7} {'longest':>8} "
        return "\n".join(
            [
                f"{self.deployments:,} deployments, {self.requests_per_min:,.0f} requests/min",
                head + f"{'deltas/s':>8} {'heap MiB':>9} {'renderers':>9}",
                *map(str, self.pages),
                f"gateway: {self.gateway_alone:.3f} cores for the requests, with a page open "
                f"{self.gateway_with_page:.3f}: {stream:.3f} for the stream",
                f"heap of a page that stays open: {heap}",
            ]
        )

    def to_json(self) -> str:
        return json.dumps(asdict(self), indent=1)


async def cost_of(browser: Browser, page: Any, name: str, seconds: float) -> PageCost:
    """Looks at ``page``, which is open, for so long."""
    session = await page.context.new_cdp_session(page)
    await session.send("Performance.enable", {"timeDomain": "threadTicks"})
    before, cpu_before_s = await _metrics(session), await browser.renderers_cpu_s()
    found = await page.evaluate(_COUNT, seconds)
    after, cpu_after_s = await _metrics(session), await browser.renderers_cpu_s()
    await session.detach()
    gaps, passed_s = found["gaps"], sum(found["gaps"]) / 1000
    spent = {
        name: (after[name] - before[name]) * 1000 / len(gaps) for name in ("TaskDuration", "ScriptDuration")
    }
    return PageCost(
        page=name,
        frames_per_s=len(gaps) / passed_s,
        gap_p99_ms=percentile(gaps, 0.99),
        main_ms_per_frame=spent["TaskDuration"],
        script_ms_per_frame=spent["ScriptDuration"],
        longest_task_ms=max(found["tasks"], default=0.0),
        deltas_per_s=found["deltas"] / passed_s,
        heap_mib=after["JSHeapUsedSize"] / 2**20,
        renderer_cores=(cpu_after_s - cpu_before_s) / passed_s,
    )


async def heaps(browser: Browser, frames: Sequence[int]) -> list[tuple[int, float]]:
    """The heap of a page after each of these numbers of frames, each of which changes every deployment, has
    requests and a change of state."""
    snapshot = fleet(40, 2)
    found: list[tuple[int, float]] = []
    async with StagedGateway(snapshot) as stage:
        page = await browser.open(stage.url, KEY, "flow")
        await page.wait_for_selector(".connection:has-text('Live')")
        session = await page.context.new_cdp_session(page)
        told = 0
        for wanted in frames:
            while told < wanted:
                for _ in range(min(50, wanted - told)):
                    told += 1
                    stage.delta(**_frame(snapshot, told))
                await page.wait_for_function(
                    f"async () => (await import('./js/live.js')).live.frames >= {told + 1}", timeout=60_000
                )
            await session.send("HeapProfiler.collectGarbage")
            used = await session.send("Runtime.getHeapUsage")
            found.append((wanted, used["usedSize"] / 2**20))
        await page.context.close()
    return found


def _frame(snapshot: dict[str, Any], number: int) -> dict[str, Any]:
    requests = [
        {
            **{"id": f"r{number}-{each}", "event": "begun", "state": "running", "tier": "standard"},
            **{"model": "llama-3.1-70b", "deployment": next(iter(snapshot["deployments"])), "at": number},
        }
        for each in range(20)
    ]
    ended = [
        each | {"id": f"r{number - 1}-{n}", "event": "ended", "state": "answered"}
        for n, each in enumerate(requests)
    ]
    figures = {"utilisation": (number % 10) / 10, "in_flight": number % 8}
    change = {"at": 1790000000.0 + number, "of": "agent", "name": "gpu-001", "from": "ready", "to": "busy"}
    return {
        "at": 1790000000.0 + number,
        "deployments": dict.fromkeys(snapshot["deployments"], figures),
        "requests": requests + ended,
        "changes": [change],
        "flow": [],
    }


def run(house: House, sizes: DashboardSizes) -> DashboardCost:
    """Starts all, and measures. There must be a compiler and a Chromium."""
    gateway = start_gateway(house)
    viewer = gateway.key("viewer", role=AdminRole.VIEWER)
    crowd = start_agents(house, gateway, sizes.agents, 8, gateway.key("bench"))
    crowd.engine.direct(interval_us=25_000)
    rate = sizes.requests_per_min / 60
    arguments = ("-r", f"{rate:g}", "-c", "512", "-n", str(sizes.tokens), "-d", "3600")
    with crowd.loaded("stream", *arguments):
        return asyncio.run(_run(crowd, viewer, sizes))


async def _run(crowd: Crowd, viewer: str, sizes: DashboardSizes) -> DashboardCost:
    gateway = crowd.gateway
    await asyncio.sleep(sizes.settle_s)
    alone = await _cores(gateway.child.pid, sizes.seconds)
    costs: list[PageCost] = []
    async with chromium() as browser:
        page = await browser.open(gateway.url, viewer)
        await page.wait_for_selector("tl-fleet tbody tr")
        shown = await page.evaluate(
            "async () => Object.keys((await import('./js/live.js')).live.state.deployments).length"
        )
        with_page = 0.0
        for name in PAGES:
            await page.evaluate("name => { location.hash = `/${name}` }", name)
            await page.wait_for_selector(f"tl-{name} h1")
            await asyncio.sleep(sizes.settle_s)
            cores, cost = await asyncio.gather(
                _cores(gateway.child.pid, sizes.seconds), cost_of(browser, page, name, sizes.seconds)
            )
            costs.append(cost)
            with_page = with_page or cores
        await page.context.close()
        kept = await heaps(browser, [sizes.heap_frames // 10, sizes.heap_frames // 2, sizes.heap_frames])
    return DashboardCost(shown, sizes.requests_per_min, costs, alone, with_page, kept)


async def _cores(pid: int, seconds: float) -> float:
    before_s = cpu_s(pid)
    await asyncio.sleep(seconds)
    return (cpu_s(pid) - before_s) / seconds


async def _metrics(session: Any) -> dict[str, float]:
    found = (await session.send("Performance.getMetrics"))["metrics"]
    return {each["name"]: float(each["value"]) for each in found}
