"""One run with several gateways, from the first process to the report."""

import asyncio
import math
from collections.abc import Callable
from pathlib import Path
from time import monotonic
from typing import Any

from gateway.storage import UsageGrouping
from tests.chaos.logs import defects_in
from tests.chaos.many.findings import ManyFindings
from tests.chaos.many.house import RPM, SLOTS, TOWN, ManyHouse
from tests.chaos.many.load import ManyLoad
from tests.chaos.many.plan import ManyPlan
from tests.chaos.many.strikes import Striker
from tests.support.run_queue import RunQueue

IDLE_S = 40.0
USAGE_S = 3.0
"""Usage is written every second."""
STORE_AWAY = ("state_not_written", "state_failed", "processes_unknown", "audit_not_written")
"""What gateways rightly log at level error while they cannot reach their store."""
WORKERS_STRUCK = ("worker_ended", "workers_not_replaced", "supervisor_lost")
"""The same where workers or their supervisor are killed, or cannot start because the store is away."""
_GAUGES = ("trunkline_requests_in_flight", "trunkline_queue_requests", "trunkline_streams_open")


async def run_many(plan: ManyPlan, directory: Path, say: Callable[[str], None]) -> ManyFindings:
    """Carry ``plan`` out; logs and state of all processes lie in ``directory``."""
    strikes = plan.strikes()
    say(
        f"seed {plan.seed}: {plan.gateways} gateways of {plan.workers}, {len(strikes)} faults, "
        f"schedule {plan.digest}"
    )
    async with ManyHouse(directory, plan.gateways, plan.workers) as house:
        began_s = monotonic()

        def clock() -> float:
            return monotonic() - began_s

        striker = Striker(house, clock)
        queue = RunQueue(clock)
        findings = ManyFindings(striker.entries, plan.gateways, plan.workers, slowness=queue.slowness)
        watching = asyncio.create_task(queue.watch())
        async with ManyLoad(house, plan.seed, clock, striker.away) as load:
            findings.outcomes, findings.limited, findings.probes = load.outcomes, load.limited, load.probes
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(striker.run(plan))
                tasks.create_task(load.run(plan.rate_per_s, plan.seconds))
            if not await load.until_idle(IDLE_S):
                findings.wrong.append(
                    f"{load.in_flight} requests whose client still waits after {IDLE_S:.0f} s"
                )
            await load.ask_each()
            findings.wrong += await _left_over(house)
        for name in house.engines:
            findings.peaks[name] = int((await asyncio.to_thread(house.engine_stats, name))["peak_lasting"])
        await asyncio.sleep(USAGE_S)
        watching.cancel()
        findings.usage = await asyncio.to_thread(_usage, house)
        findings.wrong += house.died()
    findings.judge_answers()
    findings.judge_limit()
    findings.judge_slots(SLOTS)
    findings.judge_usage()
    findings.judge_times()
    findings.wrong += [
        each for each in defects_in(directory) if not each.endswith((*STORE_AWAY, *WORKERS_STRUCK))
    ]
    for line in told(findings):
        say(line)
    return findings


def told(findings: ManyFindings) -> list[str]:
    """For people."""
    admitted = [each for each in findings.limited if each.status == 200]
    lines = [
        f"{len(findings.outcomes)} requests: {dict(findings.verdicts())}",
        f"limit of {RPM} a minute: {findings.most_in_a_minute(admitted)} of {len(findings.limited)} admitted "
        f"(allowed {findings.allowed})",
        f"most requests at once: {findings.peaks}, slots {SLOTS}; in the store {findings.usage[0]} requests, "
        f"{findings.usage[1]} tokens; {len(findings.probes)} probes",
        f"everything took {findings.slowness(0.0, math.inf):.1f} times as long as without other work",
    ]
    for entry in findings.entries:
        lines.append(f"  {entry} (after {entry.whole_s - entry.until_s:.1f} s)")
    return [*lines, *(f"WRONG: {each}" for each in findings.wrong)]


def as_json(findings: ManyFindings, plan: ManyPlan) -> dict[str, Any]:
    """For programs."""
    admitted = [each for each in findings.limited if each.status == 200]
    return {
        "seed": plan.seed,
        "gateways": plan.gateways,
        "workers": plan.workers,
        "seconds": plan.seconds,
        "requests": len(findings.outcomes),
        "verdicts": dict(findings.verdicts()),
        "probes": len(findings.probes),
        "limit": RPM,
        "most_in_a_minute": findings.most_in_a_minute(admitted),
        "allowed_in_a_minute": findings.allowed,
        "peaks": findings.peaks,
        "usage": {"requests": findings.usage[0], "tokens": findings.usage[1]},
        "slowness": round(findings.slowness(0.0, math.inf), 2),
        "faults": [
            {
                "kind": str(entry.struck.kind),
                "gateway": entry.struck.gateway,
                "began_s": round(entry.began_s, 2),
                "until_s": round(entry.until_s, 2) if math.isfinite(entry.until_s) else None,
                "whole_s": round(entry.whole_s, 2) if math.isfinite(entry.whole_s) else None,
                "whole": entry.whole,
            }
            for entry in findings.entries
        ],
        "wrong": findings.wrong,
    }


async def _left_over(house: ManyHouse) -> list[str]:
    """What of requests or slots does not come to an end, once nothing is wrong any more."""
    deadline_s = monotonic() + IDLE_S
    expected = float(SLOTS * len(TOWN.posts))
    while True:
        all_metrics = await asyncio.gather(*(house.metrics(gateway) for gateway in range(house.count)))
        busy = [
            f"{name} {value:.0f} at g{gateway}"
            for gateway, metrics in enumerate(all_metrics)
            for name, value in metrics.items()
            if value and name.partition("{")[0] in _GAUGES
        ]
        running = {name: await asyncio.to_thread(each.running) for name, each in house.engines.items()}
        granted = await house.granted()
        if not busy and not any(running.values()) and granted == expected:
            return []
        if monotonic() > deadline_s:
            return [f"left over: {busy}, engines {running}, {granted:.0f} of {expected:.0f} slots lent"]
        await asyncio.sleep(0.1)


def _usage(house: ManyHouse) -> tuple[int, int]:
    with house.open_store() as store:
        found = [each.amount for each in store.usage.totals(UsageGrouping.KEY) if each.name == "plain"]
    return sum(each.requests for each in found), sum(each.completion_tokens for each in found)
