"""Policies on a real gateway: four engines of different speeds, a trace replayed in real time.

Each policy has a gateway, agents and engines of its own and gets the same requests at the same times.
Engines read one prompt after the other and write each answer at a fixed pace, the fastest eight times as
fast as the slowest, and nobody tells the gateway which is which. Utilisation is the mean share of an engine's
slots in use while requests come.
"""

import asyncio
import json
import statistics
import tempfile
import urllib.request
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from itertools import dropwhile, takewhile
from pathlib import Path

from gateway.tools.simulate.inputs import Job
from gateway.tools.simulate.traces import TraceFile
from tests.bench.clients import Reading, open_stream, post
from tests.bench.figures import percentile
from tests.support.processes import Engine, Gateway, House

MODEL = "scripted"
POLICIES = ("round-robin", "least-connections", "power-of-two", "least-outstanding", "cost")
SPEEDS = (1.0, 0.5, 0.25, 0.125)
TOKENS_PER_S = 100.0
PREFILL_TOKENS_PER_S = 20_000.0
SLOTS = 8
MOST_TOKENS = 1024
_WORD = "abc "
"""What engines here count as a token, and read as one."""
_LOOK_S = 0.05
_PATIENCE_S = 120.0
_ROLE = 1
"""Answers begin with a piece that has no token yet."""


@dataclass(frozen=True, slots=True)
class Seen:
    """What one policy made of it. Seconds."""

    policy: str
    requests: int
    failed: int
    first_p50_s: float
    first_p99_s: float
    whole_p50_s: float
    whole_p99_s: float
    utilisation: tuple[float, ...]
    """By engine, the fastest first."""

    @property
    def utilisation_cv(self) -> float:
        return statistics.pstdev(self.utilisation) / statistics.fmean(self.utilisation)

    def __str__(self) -> str:
        used = " ".join(f"{share:4.0%}" for share in self.utilisation)
        return (
            f"{self.policy:<18} {self.requests:6} {self.failed:6} "
            f"{self.first_p50_s:8.2f} {self.first_p99_s:7.2f} {self.whole_p50_s:9.2f} {self.whole_p99_s:7.2f}"
            f"  {used}  {self.utilisation_cv:5.2f}"
        )


@dataclass(frozen=True, slots=True)
class Comparison:
    """Of policies, on the same requests."""

    seen: list[Seen]

    def __str__(self) -> str:
        head = (
            f"{'policy':<18} {'sent':>6} {'failed':>6} "
            f"{'TTFT p50':>8} {'p99 s':>7} {'whole p50':>9} {'p99 s':>7}"
            "  engines in use          CV"
        )
        return "\n".join([head, *map(str, self.seen)])

    def to_json(self) -> str:
        return json.dumps(
            [asdict(each) | {"utilisation_cv": each.utilisation_cv} for each in self.seen], indent=1
        )


def jobs_of(trace: Path, from_s: float, seconds: float, rate: float) -> list[Job]:
    """The requests of ``seconds``, at ``rate`` times the trace's pace, from its second ``from_s`` on."""
    later = dropwhile(lambda job: job.at_s < from_s, TraceFile(trace).jobs())
    during = takewhile(lambda job: job.at_s < from_s + seconds * rate, later)
    return [replace(job, at_s=job.at_s - from_s) for job in during]


def run(jobs: Sequence[Job], rate: float, policies: Sequence[str] = POLICIES) -> Comparison:
    """Replay ``jobs`` once for each policy, one after the other."""
    return Comparison([_with(policy, jobs, rate) for policy in policies])


def _with(policy: str, jobs: Sequence[Job], rate: float) -> Seen:
    with tempfile.TemporaryDirectory(prefix="trunkline-bench-") as directory, House(Path(directory)) as house:
        gateway = house.gateway("--log-level", "warning", environment=_settings(policy))
        key = gateway.key("bench")
        engines = []
        for number, speed in enumerate(SPEEDS):
            engine = house.engine("--model", MODEL, name=f"engine{number}")
            prefill = PREFILL_TOKENS_PER_S * speed
            engine.direct(default={"tokens_per_s": TOKENS_PER_S * speed, "prefill_tokens_per_s": prefill})
            house.agent(gateway, engine.url, "--slots", str(SLOTS), name=f"agent{number}")
            engines.append(engine)
        slots = SLOTS * len(SPEEDS)
        house.children.wait_until(lambda: _granted(gateway) == slots, "all agents serve", _PATIENCE_S)
        return asyncio.run(_replay(policy, jobs, rate, gateway.port, key, engines))


def _settings(policy: str) -> dict[str, str]:
    settings = {"DISPATCH__POLICY": policy, "DISPATCH__SLOW_START_S": "0", "HTTP__METRICS_PUBLIC": "true"}
    settings |= {"QUEUE__MAX_WAIT_S": str(_PATIENCE_S)}
    return {f"TRUNKLINE_GATEWAY_{name}": value for name, value in settings.items()}


def _granted(gateway: Gateway) -> int:
    with urllib.request.urlopen(f"{gateway.url}/metrics", timeout=10.0) as answer:
        text = answer.read().decode()
    name = f'trunkline_slots_granted{{model="{MODEL}"}} '
    return sum(int(float(line.removeprefix(name))) for line in text.splitlines() if line.startswith(name))


async def _replay(
    policy: str, jobs: Sequence[Job], rate: float, port: int, key: str, engines: Sequence[Engine]
) -> Seen:
    loop = asyncio.get_running_loop()
    used: list[list[int]] = [[] for _ in engines]
    watching = [
        loop.create_task(_watch(engine, counts)) for engine, counts in zip(engines, used, strict=True)
    ]
    began_s = loop.time()
    asking = []
    for number, job in enumerate(jobs):
        await asyncio.sleep(began_s + job.at_s / rate - loop.time())
        asking.append(loop.create_task(_ask(port, key, number, job)))
    sent = [len(counts) for counts in used]
    answers = await asyncio.gather(*asking)
    for task in watching:
        task.cancel()
    right = [
        (seen, from_s) for seen, from_s, job in answers if seen.done and seen.tokens == _tokens(job) + _ROLE
    ]
    first = [seen.first_s - from_s for seen, from_s in right if seen.first_s is not None]
    whole = [seen.last_s - from_s for seen, from_s in right]
    return Seen(
        policy=policy,
        requests=len(jobs),
        failed=len(jobs) - len(right),
        first_p50_s=percentile(first, 0.5),
        first_p99_s=percentile(first, 0.99),
        whole_p50_s=percentile(whole, 0.5),
        whole_p99_s=percentile(whole, 0.99),
        utilisation=tuple(
            statistics.fmean(counts[:count]) / SLOTS for counts, count in zip(used, sent, strict=True)
        ),
    )


async def _watch(engine: Engine, counts: list[int]) -> None:
    """How many requests it runs, every few milliseconds."""
    while True:
        stats = await asyncio.to_thread(engine.stats)
        counts.append(min(SLOTS, int(stats["running"])))
        await asyncio.sleep(_LOOK_S)


async def _ask(port: int, key: str, number: int, job: Job) -> tuple[Reading, float, Job]:
    """The client allows ``MOST_TOKENS``; how long the answer becomes only the engine knows. No two prompts
    begin alike: the trace does not say which did, and engines here keep nothing."""
    asked = {
        "model": MODEL,
        "stream": True,
        "max_tokens": MOST_TOKENS,
        "script": {"ends_after": _tokens(job)},
    }
    asked["messages"] = [{"role": "user", "content": f"{number:07} " + _WORD * (job.input_tokens - 2)}]
    body = json.dumps(asked).encode()
    began_s = asyncio.get_running_loop().time()
    stream = await open_stream(port, post(key, "/v1/chat/completions", "application/json", body))
    return await stream.finished(), began_s, job


def _tokens(job: Job) -> int:
    return min(job.output_tokens, MOST_TOKENS - 1)
