"""A run with batches: their lines are answered though gateways are killed again and again."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic
from typing import Any

import aiohttp

from tests.chaos.jobs.house import SLOTS, JobsHouse
from tests.chaos.jobs.judge import DOUBLED_SHARE, BatchFindings
from tests.chaos.jobs.lines import CHAT, BatchLine, JobsPlan, digest_of
from tests.chaos.logs import defects_in

POLL_S = 0.1
STILL_S = 180.0
"""Nothing has got on for so long: a batch that stands still."""
_OVER = ("completed", "failed", "expired", "cancelled")
_WRITTEN = ("finalizing", *_OVER)


@dataclass(slots=True)
class _Progress:
    """Of all batches of a run."""

    shown: dict[str, dict[str, Any]] = field(default_factory=dict)

    @property
    def done(self) -> int:
        return sum(_done(batch) for batch in self.shown.values())

    @property
    def is_over(self) -> bool:
        return all(batch.get("status") in _OVER for batch in self.shown.values())

    @property
    def all_ended(self) -> bool:
        """Their files are being written, or are."""
        return all(batch.get("status") in _WRITTEN for batch in self.shown.values())


def _done(batch: dict[str, Any]) -> int:
    counts = batch.get("request_counts") or {}
    return int(counts.get("completed", 0)) + int(counts.get("failed", 0))


async def run_batches(
    plan: JobsPlan, directory: Path, say: Callable[[str], None], doubled_share: float = DOUBLED_SHARE
) -> list[str]:
    """Carry ``plan`` out. Returns what is wrong, in words; logs and state lie in ``directory``."""
    batches, findings, began_s = plan.batches(), BatchFindings(), monotonic()
    say(
        f"seed {plan.seed}: {plan.lines} lines, {plan.gateways} gateways, "
        f"killed: {digest_of(plan.kill_times())}"
    )
    async with JobsHouse(directory, gateways=plan.gateways, demo=plan.demo) as house:
        progress = _Progress()
        for lines in batches:
            made = await _submit(house, lines)
            progress.shown[made["id"]] = made
        async with asyncio.TaskGroup() as tasks:
            killing = tasks.create_task(_kill(plan, house, progress))
            await _watch(house, progress)
            await killing
        for lines, batch in zip(batches, progress.shown.values(), strict=True):
            findings.judge(lines, batch, *await _files(house, batch))
        computed = await asyncio.to_thread(house.computed_tokens)
        doubled = findings.judge_tokens(computed, doubled_share)
        wrong = findings.wrong + house.died()
    wrong += defects_in(directory)
    say(
        f"{findings.lines} lines: {findings.right} right, {findings.refused} refused as they should be; "
        f"{plan.kills} kills of gateways, {SLOTS * len(house.engines)} slots, {monotonic() - began_s:.0f} s; "
        f"{computed} tokens computed for {findings.tokens}: {doubled:.2%} twice"
    )
    for each in wrong:
        say(f"WRONG: {each}")
    return wrong


async def _submit(house: JobsHouse, lines: tuple[BatchLine, ...]) -> dict[str, Any]:
    form = aiohttp.FormData()
    form.add_field("purpose", "batch")
    form.add_field("file", b"".join(line.request() for line in lines), filename="lines.jsonl")
    file = await house.ask_json("POST", "/v1/files", data=form)
    asked = {"input_file_id": file["id"], "endpoint": CHAT, "completion_window": "24h"}
    return await house.ask_json("POST", "/v1/batches", json=asked)


async def _watch(house: JobsHouse, progress: _Progress) -> None:
    """Until all batches are over. Raises TimeoutError where they get on no more."""
    seen, seen_s = "", monotonic()
    while not progress.is_over:
        for batch_id in progress.shown:
            progress.shown[batch_id] = await house.ask_json("GET", f"/v1/batches/{batch_id}")
        now = f"{progress.done} {[batch['status'] for batch in progress.shown.values()]}"
        if now != seen:
            seen, seen_s = now, monotonic()
        elif monotonic() - seen_s > STILL_S:
            raise TimeoutError(f"nothing got on for {STILL_S:.0f} s: {now}")
        await asyncio.sleep(POLL_S)


async def _kill(plan: JobsPlan, house: JobsHouse, progress: _Progress) -> None:
    """Each kill when its time has come: the last ones when the files are being written."""
    for kill in plan.kill_times():
        while progress.done < kill.after and not progress.all_ended:  # noqa: ASYNC110
            await asyncio.sleep(POLL_S / 4)
        await house.kill_gateway(kill.gateway, kill.away_s)


async def _files(house: JobsHouse, batch: dict[str, Any]) -> tuple[bytes, bytes]:
    """Output and errors."""
    names = [batch.get(f"{kind}_file_id") for kind in ("output", "error")]
    found = [await house.ask("GET", f"/v1/files/{name}/content") if name else b"" for name in names]
    return found[0], found[1]
