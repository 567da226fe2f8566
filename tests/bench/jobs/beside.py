"""The time to the first token of interactive requests alone, with a batch that fills every slot beside them,
and with one that has slots of an engine of its own, in turns within one run.

The last tells what the batch's work costs them on a machine that all share from what its slots cost them. All
of this with engines whose first token takes no time, and with engines that read a prompt first.
"""

import asyncio
import json
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from enum import Enum
from functools import partial
from itertools import chain, product
from random import Random

from tests.bench.clients import chat_request, open_stream
from tests.bench.figures import percentile
from tests.bench.jobs.client import JobClient, chat_of
from tests.bench.site import MODEL, LoadSite, build
from tests.support.processes import Engine, House, until

_SLOTS = 16
_PACE = 50.0
"""Tokens a second of every answer."""
_SHARE = 0.3
"""Of the slots that interactive requests need."""
_TOKENS = 25
_LINE_TOKENS = 500
_CONTINUES = "chat=final_message"
"""Of both engines, so that the tokens of both batches come through the gateway."""
_OTHER_MODEL = "elsewhere"
_OTHER_SLOTS = 8
"""About as many as a batch gets beside the requests."""
_DRAWS = 1000
READING_MS = (0, 50)
"""Before the first token. An H100 reads the median prompt of Azure's trace of 2023 (code), 1,469 tokens, with
a model of 8 billion parameters so fast, at half of its printed arithmetic; other devices take longer."""


class Batch(Enum):
    """Where there is one."""

    NONE = "none"
    BESIDE = MODEL
    ELSEWHERE = _OTHER_MODEL


@dataclass(frozen=True, slots=True)
class BesideSizes:
    """Slices of ``seconds``: ``rounds`` of each kind with each kind of engine."""

    rounds: int = 6
    seconds: float = 15.0
    settle_s: float = 2.0
    reading_ms: Sequence[int] = READING_MS
    """What engines take before their first token."""


@dataclass(frozen=True, slots=True)
class BesideTimes:
    """Times to the first token in milliseconds: median and 99th percentile. The engine takes ``reading_s`` of
    each before its first token."""

    reading_s: float
    requests: int
    failed: int
    alone_ms: tuple[float, float]
    with_batch_ms: tuple[float, float]
    elsewhere_ms: tuple[float, float]
    ratio_within: tuple[float, float]
    """What nine of ten ratios are within when as many rounds are drawn from those there were."""
    batch_per_s: float
    """Tokens of the batch beside."""

    @property
    def ratio(self) -> float:
        """Of the 99th percentiles with a batch beside and alone."""
        return self.with_batch_ms[1] / self.alone_ms[1]

    @property
    def slots_ratio(self) -> float:
        """Of the 99th percentiles with a batch beside and with one that has slots of its own."""
        return self.with_batch_ms[1] / self.elsewhere_ms[1]

    def __str__(self) -> str:
        low, high = self.ratio_within

        def shown(times_ms: tuple[float, float]) -> str:
            return f"p50 {times_ms[0]:.1f} ms, p99 {times_ms[1]:.1f} ms"

        return (
            f"first token of interactive requests, {self.reading_s * 1000:.0f} ms of it the engine's: "
            f"{shown(self.alone_ms)}; with a batch in every free slot: "
            f"{shown(self.with_batch_ms)}, p99 × {self.ratio:.2f} ({low:.2f} to {high:.2f}), "
            f"{self.batch_per_s:.0f} tokens/s of the batch; with a batch that has slots of its own: "
            f"{shown(self.elsewhere_ms)}, p99 of the other × {self.slots_ratio:.2f} of that "
            f"({self.requests} requests, {self.failed} failed)"
        )

    def to_mapping(self) -> dict[str, object]:
        """As JSON has it."""
        return asdict(self) | {"ratio": self.ratio, "slots_ratio": self.slots_ratio}


@dataclass(frozen=True, slots=True)
class Beside:
    """All of one run."""

    times: list[BesideTimes]

    def __str__(self) -> str:
        return "\n".join(map(str, self.times))

    def to_json(self) -> str:
        return json.dumps([each.to_mapping() for each in self.times], indent=1)


class _Slices:
    """What was found with engines that take ``reading_s`` before each first token."""

    def __init__(self, reading_s: float) -> None:
        self._reading_s = reading_s
        self._found: dict[Batch, list[list[float]]] = {each: [] for each in Batch}
        self._failed, self._batch_tokens, self._batch_s = 0, 0, 0.0

    def measure(self, site: LoadSite, where: Batch, seconds: float, random: Random) -> None:
        """One slice, with the batch as it runs now."""
        before, began_s = site.engine.stats()["computed_tokens"], time.monotonic()
        first_s = asyncio.run(_ask(site, seconds, self._reading_s, random))
        if where is Batch.BESIDE:
            self._batch_s += time.monotonic() - began_s
            self._batch_tokens += site.engine.stats()["computed_tokens"] - before - _TOKENS * len(first_s)
        self._found[where].append([each for each in first_s if each is not None])
        self._failed += first_s.count(None)

    def times(self, random: Random) -> BesideTimes:
        """Of all slices so far, of which there is one of each kind at least."""

        def of(where: Batch) -> tuple[float, float]:
            times_s = [*chain.from_iterable(self._found[where])]
            return percentile(times_s, 0.5) * 1000, percentile(times_s, 0.99) * 1000

        count = sum(map(len, chain.from_iterable(self._found.values()))) + self._failed
        times_ms = of(Batch.NONE), of(Batch.BESIDE), of(Batch.ELSEWHERE)
        within = _ratio_within(self._found[Batch.NONE], self._found[Batch.BESIDE], random)
        per_s = self._batch_tokens / self._batch_s
        return BesideTimes(self._reading_s, count, self._failed, *times_ms, within, per_s)


def run(house: House, sizes: BesideSizes) -> Beside:
    """Slices in turns."""
    site, random = build(house, slots=_SLOTS, continues=_CONTINUES), Random(1)
    other = house.engine("--model", _OTHER_MODEL, name="other-engine")
    slots, able = ("--slots", str(_OTHER_SLOTS)), {"TRUNKLINE_AGENT_CONTINUES": _CONTINUES}
    house.agent(site.gateway, other.url, *slots, name="other-agent", environment=able)
    house.wait_for_model(site.gateway, site.key, _OTHER_MODEL)
    engines = {Batch.BESIDE: site.engine, Batch.ELSEWHERE: other}
    client = JobClient(site.gateway, site.key)
    slices = [_Slices(reading_ms / 1000) for reading_ms in sizes.reading_ms]
    for where, of in product([*Batch] * sizes.rounds, slices):
        batch_id = "" if where is Batch.NONE else _fill(engines[where], where.value, client, sizes)
        time.sleep(sizes.settle_s)
        of.measure(site, where, sizes.seconds, random)
        if where is not Batch.NONE:
            client.ask(f"/v1/batches/{batch_id}/cancel", {})
            until("the batch is gone", partial(_is_idle, engines[where]), 120.0)
            until("no job is left", lambda: not client.open_jobs(), 120.0)
    return Beside([each.times(random) for each in slices])


def _ratio_within(
    alone: Sequence[Sequence[float]], beside: Sequence[Sequence[float]], random: Random
) -> tuple[float, float]:
    """Between which the ratio of the 99th percentiles is in nine of ten cases, by the bootstrap over rounds
    (Efron 1979): what the requests of one round have in common is not taken for many observations."""
    rounds, ratios = range(len(alone)), []
    for _ in range(_DRAWS):
        drawn = random.choices(rounds, k=len(rounds))
        of = [percentile([*chain.from_iterable(each[at] for at in drawn)], 0.99) for each in (alone, beside)]
        ratios.append(of[1] / of[0])
    return percentile(ratios, 0.05), percentile(ratios, 0.95)


def _is_idle(engine: Engine) -> bool:
    return bool(engine.stats()["running"] == 0)


def _fill(engine: Engine, model: str, client: JobClient, sizes: BesideSizes) -> str:
    """A batch with more lines than can be done; returns once it has most of the slots that jobs get."""
    rounds = (sizes.seconds + 2 * sizes.settle_s + 60.0) * _PACE / _LINE_TOKENS
    lines = int(_SLOTS * rounds) + _SLOTS
    batch_id = client.batch([chat_of(model, f"line {each}", _LINE_TOKENS, _PACE) for each in range(lines)])
    until("the batch has most slots", lambda: engine.stats()["running"] >= _OTHER_SLOTS, 120.0)
    return batch_id


async def _ask(site: LoadSite, seconds: float, reading_s: float, random: Random) -> list[float | None]:
    """Times to the first token of requests that begin at random times (open loop); None: it failed."""
    per_s = _SLOTS * _SHARE * _PACE / _TOKENS
    request = chat_request(site.key, MODEL, tokens=_TOKENS, tokens_per_s=_PACE, delay_s=reading_s)
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
