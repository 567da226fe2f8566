"""The time to the first token of interactive requests with a batch that fills every slot beside them, and
without, in turns within one run."""

import asyncio
import json
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from random import Random

from tests.bench.clients import chat_request, open_stream
from tests.bench.figures import percentile
from tests.bench.jobs.client import JobClient, chat_of
from tests.bench.site import MODEL, LoadSite, build
from tests.support.processes import House, until

_SLOTS = 16
_PACE = 50.0
"""Tokens a second of every answer."""
_SHARE = 0.3
"""Of the slots that interactive requests need."""
_TOKENS = 25
_LINE_TOKENS = 500


@dataclass(frozen=True, slots=True)
class BesideSizes:
    """Slices of ``seconds``, as many with a batch as without."""

    pairs: int = 6
    seconds: float = 15.0
    settle_s: float = 2.0


@dataclass(frozen=True, slots=True)
class Beside:
    """Times to the first token in milliseconds: median and 99th percentile."""

    requests: int
    failed: int
    alone_ms: tuple[float, float]
    with_batch_ms: tuple[float, float]

    @property
    def ratio(self) -> float:
        """Of the 99th percentiles."""
        return self.with_batch_ms[1] / self.alone_ms[1]

    def __str__(self) -> str:
        def shown(times_ms: tuple[float, float]) -> str:
            return f"p50 {times_ms[0]:.1f} ms, p99 {times_ms[1]:.1f} ms"

        return (
            f"first token of interactive requests: {shown(self.alone_ms)}; with a batch in every free slot: "
            f"{shown(self.with_batch_ms)}; p99 × {self.ratio:.2f} ({self.requests} requests, {self.failed} "
            "failed)"
        )

    def to_json(self) -> str:
        return json.dumps(asdict(self) | {"ratio": self.ratio}, indent=1)


def run(house: House, sizes: BesideSizes) -> Beside:
    """Slices in turns."""
    site, random = build(house, slots=_SLOTS, continues="chat=final_message"), Random(1)
    client = JobClient(site.gateway, site.key)
    found: dict[bool, list[float]] = {False: [], True: []}
    failed = 0
    for number in range(2 * sizes.pairs):
        with_batch = number % 2 == 1
        batch_id = _fill(site, client, sizes) if with_batch else ""
        time.sleep(sizes.settle_s)
        first_s = asyncio.run(_ask(site, sizes.seconds, random))
        found[with_batch] += [each for each in first_s if each is not None]
        failed += first_s.count(None)
        if with_batch:
            client.ask(f"/v1/batches/{batch_id}/cancel", {})
            until("the batch is gone", lambda: site.engine.stats()["running"] == 0, 120.0)
            until("no job is left", lambda: not client.open_jobs(), 120.0)

    def of(times_s: Sequence[float]) -> tuple[float, float]:
        return percentile(times_s, 0.5) * 1000, percentile(times_s, 0.99) * 1000

    return Beside(sum(map(len, found.values())) + failed, failed, of(found[False]), of(found[True]))


def _fill(site: LoadSite, client: JobClient, sizes: BesideSizes) -> str:
    """A batch with more lines than can be done; returns once it has all slots that jobs get."""
    rounds = (sizes.seconds + 2 * sizes.settle_s + 60.0) * _PACE / _LINE_TOKENS
    lines = int(_SLOTS * rounds) + _SLOTS
    batch_id = client.batch([chat_of(MODEL, f"line {each}", _LINE_TOKENS, _PACE) for each in range(lines)])
    until("the batch has most slots", lambda: site.engine.stats()["running"] > _SLOTS / 2, 120.0)
    return batch_id


async def _ask(site: LoadSite, seconds: float, random: Random) -> list[float | None]:
    """Times to the first token of requests that begin at random times (open loop); None: it failed."""
    per_s = _SLOTS * _SHARE * _PACE / _TOKENS
    request = chat_request(site.key, MODEL, tokens=_TOKENS, tokens_per_s=_PACE)
    loop = asyncio.get_running_loop()

    async def one(meant_s: float) -> float | None:
        await asyncio.sleep(meant_s - loop.time())
        stream = await open_stream(site.gateway.port, request, measured=False)
        seen = await stream.finished()
        stream.transport.close()
        return seen.first_s - meant_s if seen.done and seen.first_s is not None else None

    at_s, asked = loop.time(), []
    async with asyncio.TaskGroup() as tasks:
        until_s = at_s + seconds
        while (at_s := at_s + random.expovariate(per_s)) < until_s:
            asked.append(tasks.create_task(one(at_s)))
    return [task.result() for task in asked]
