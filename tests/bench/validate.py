"""The simulator's engine model beside a real engine: what it predicts, and what is measured.

The built-in engine serves its demo model on this machine's CPU. How long it takes to read prompts of several
lengths, and to write for one to all slots at once, gives a device of the simulator (``--device``) by least
squares. Then a mix of requests is sent in real time, and the same requests are simulated on that device.
"""

import argparse
import asyncio
import json
import os
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from agent.engines.engine_program import KEY_VARIABLE
from agent.engines.torch.demo import DEMO_MODEL_NAME
from gateway.tools.simulate.devices import DEFAULT_MODEL, MODELS, DevicePace
from gateway.tools.simulate.fleet import DeploymentBuild, DeviceGroup
from gateway.tools.simulate.inputs import Job
from gateway.tools.simulate.policies import choices
from gateway.tools.simulate.simulation import SimulationPlan, simulate
from tests.bench.figures import percentile

SLOTS = 8
KEY = "validate"
CONTEXT_TOKENS = 1024
STEP_TOKENS = 256
"""Of the engine on a CPU: most tokens of one step."""

VOCABULARY = 1500
LENGTHS = (16, 64, 128, 256, 384, 512, 768)
BATCHES = (1, 2, 4, 6, 8)
WRITTEN = 48
TIMES = 5
RATE_SHARE = 0.35
"""Of what the fitted device can do, the mix asks for so much."""

REQUESTS, SMALL = 150, 12
ROUNDS = 400
"""Of coordinate descent."""


@dataclass(frozen=True, slots=True)
class Seen:
    """One answer; seconds since it was asked for."""

    first_s: float
    total_s: float
    tokens: int


@dataclass(frozen=True, slots=True)
class Observation:
    """Something that took ``took_s``: so many requests sent, steps, tokens computed, tokens of context read
    by those who write, and pairs of tokens in attention."""

    sent: float
    steps: float
    tokens: float
    context: float
    pairs: float
    took_s: float

    @property
    def parts(self) -> tuple[float, ...]:
        return self.sent, self.steps, self.tokens, self.context, self.pairs


@dataclass(frozen=True, slots=True)
class Fit:
    """Seconds for each of an observation's parts."""

    sent_s: float
    step_s: float
    token_s: float
    context_s: float
    pair_s: float

    def expects(self, seen: Observation) -> float:
        return sum(a * b for a, b in zip(seen.parts, self._all, strict=True))

    @property
    def _all(self) -> tuple[float, ...]:
        return self.sent_s, self.step_s, self.token_s, self.context_s, self.pair_s

    @property
    def pace(self) -> DevicePace:
        return DevicePace(
            step_s=self.step_s,
            weights_s=0.0,
            token_s=self.token_s,
            context_s=self.context_s,
            pair_s=self.pair_s,
            kv_tokens=2 * SLOTS * CONTEXT_TOKENS,
            chunk_tokens=STEP_TOKENS,
            max_running=SLOTS,
            load_s=1.0,
        )

    def __str__(self) -> str:
        pace = self.pace
        return (
            f"mine:step_s={pace.step_s:.3g},weights_s=0,token_s={pace.token_s:.3g},context_s={pace.context_s:.3g},"
            f"pair_s={pace.pair_s:.3g},kv_tokens={pace.kv_tokens},chunk_tokens={pace.chunk_tokens},"
            f"max_running={pace.max_running} and {self.sent_s * 1000:.1f} ms for a request's way"
        )


def fit(seen: Sequence[Observation]) -> Fit:
    """Least squares of relative errors, nothing below 0: by coordinates, which for five is fast enough."""
    rows = [tuple(part / each.took_s for part in each.parts) for each in seen]
    found = [0.0] * 5
    for _ in range(ROUNDS):
        for place in range(5):
            square = sum(row[place] ** 2 for row in rows)
            if square:
                rest = sum(
                    row[place] * (1 - sum(row[other] * found[other] for other in range(5) if other != place))
                    for row in rows
                )
                found[place] = max(0.0, rest / square)
    return Fit(*found)


def reading(tokens: int, took_s: float) -> Observation:
    """A prompt alone, to its first token."""
    return Observation(1, -(-tokens // STEP_TOKENS), tokens, 0, tokens * tokens / 2, took_s)


def writing(batch: int, context_tokens: float, step_s: float) -> Observation:
    """One step of so many that write, with so much context each."""
    return Observation(0, 1, batch, batch * context_tokens, 0, step_s)


class These:
    """Traffic of known jobs."""

    block_tokens = 32

    def __init__(self, jobs: Sequence[Job]) -> None:
        self._jobs = jobs

    def jobs(self) -> Iterator[Job]:
        return iter(self._jobs)


def mix(fitted: Fit, requests: int, seed: int) -> list[Job]:
    """Requests that together ask for ``RATE_SHARE`` of what the device can do."""
    chance = random.Random(seed)
    sizes = [
        (
            min(700, max(8, round(chance.lognormvariate(5.0, 0.7)))),
            min(200, 1 + round(chance.expovariate(0.03))),
        )
        for _ in range(requests)
    ]
    # Alone a step is a request's own; with half of the slots taken it is shared.
    work_s = [
        fitted.expects(reading(prompt, 1.0))
        + answer * (fitted.step_s / (SLOTS / 2) + fitted.token_s + fitted.context_s * (prompt + answer / 2))
        for prompt, answer in sizes
    ]
    gap_s = statistics.fmean(work_s) / RATE_SHARE
    at_s, jobs = 0.0, []
    for prompt, answer in sizes:
        jobs.append(Job(at_s, prompt, answer))
        at_s += chance.expovariate(1 / gap_s)
    return jobs


@dataclass(frozen=True, slots=True)
class Validation:
    """Seconds at p50 and p95, measured and predicted."""

    fitted: Fit
    off: float
    """The mean relative error of the fit."""
    requests: int
    measured: dict[str, tuple[float, float]]
    predicted: dict[str, tuple[float, float]]

    def __str__(self) -> str:
        lines = [f"device: {self.fitted}", f"fit: off by {self.off:.0%} on average; {self.requests} requests"]
        for of, measured in self.measured.items():
            for rank, real_s, said_s in zip(("p50", "p95"), measured, self.predicted[of], strict=True):
                change = said_s / real_s - 1
                lines.append(
                    f"{of} {rank}: measured {real_s:.3f} s, predicted {said_s:.3f} s ({change:+.0%})"
                )
        return "\n".join(lines)


def predicted(fitted: Fit, jobs: Sequence[Job]) -> dict[str, tuple[float, float]]:
    """The same requests in the simulator, handed to the engine as they come."""
    plan = SimulationPlan(
        These(jobs),
        (DeviceGroup(1, "mine", fitted.sent_s),),
        MODELS[DEFAULT_MODEL],
        build=DeploymentBuild(own={"mine": fitted.pace}),
    )
    (choice,) = choices("round-robin")
    told = simulate(plan, choice).as_json()
    return {
        of: (told[key]["p50"], told[key]["p95"]) for of, key in (("ttft", "ttft_s"), ("latency", "latency_s"))
    }


# --- A real engine ---


class Asking:
    """Streams completions of random tokens, so that none is cached."""

    def __init__(self, url: str, seed: int) -> None:
        self._client = httpx.AsyncClient(
            base_url=url, headers={"authorization": f"Bearer {KEY}"}, timeout=120.0, limits=httpx.Limits()
        )
        self._chance = random.Random(seed)

    async def close(self) -> None:
        await self._client.aclose()

    async def ask(self, prompt_tokens: int, answer_tokens: int) -> Seen:
        prompt = [self._chance.randrange(10, VOCABULARY) for _ in range(prompt_tokens)]
        body: dict[str, Any] = {
            "model": DEMO_MODEL_NAME,
            "prompt": prompt,
            "max_tokens": answer_tokens,
            "ignore_eos": True,
            "stream": True,
            "temperature": 0,
        }
        began_s, first_s, pieces = time.perf_counter(), None, 0
        async with self._client.stream("POST", "/v1/completions", json=body) as answer:
            answer.raise_for_status()
            async for line in answer.aiter_lines():
                if line.startswith("data: {") and first_s is None:
                    first_s = time.perf_counter() - began_s
                pieces += line.startswith("data: {")
        total_s = time.perf_counter() - began_s
        return Seen(total_s if first_s is None else first_s, total_s, pieces)


async def measure(asking: Asking) -> list[Observation]:
    """How long it reads and writes."""
    seen: list[Observation] = []
    await asking.ask(200, 20)
    for tokens in LENGTHS:
        took_s = statistics.median([(await asking.ask(tokens, 1)).total_s for _ in range(TIMES)])
        seen.append(reading(tokens, took_s))
    for batch in BATCHES:
        gaps_s = []
        for _ in range(max(1, TIMES // 2)):
            answers = await asyncio.gather(*(asking.ask(16, WRITTEN) for _ in range(batch)))
            gaps_s += [(each.total_s - each.first_s) / (WRITTEN - 1) for each in answers]
        seen.append(writing(batch, 16 + WRITTEN / 2, statistics.median(gaps_s)))
    return seen


async def replay(asking: Asking, jobs: Sequence[Job]) -> dict[str, tuple[float, float]]:
    """All of them, at their times."""

    async def one(job: Job) -> Seen:
        await asyncio.sleep(job.at_s)
        return await asking.ask(job.input_tokens, job.output_tokens)

    seen = await asyncio.gather(*map(one, jobs))
    return {
        "ttft": _two([each.first_s for each in seen]),
        "latency": _two([each.total_s for each in seen]),
    }


def _two(values: Sequence[float]) -> tuple[float, float]:
    return percentile(values, 0.5), percentile(values, 0.95)


async def validate(url: str, requests: int, seed: int) -> Validation:
    asking = Asking(url, seed)
    try:
        seen = await measure(asking)
        jobs = mix(fit(seen), requests, seed)
        measured = await replay(asking, jobs)
        seen += await measure(asking)  # what else the machine does changes meanwhile
        fitted = fit(seen)
        off = statistics.fmean(abs(fitted.expects(each) / each.took_s - 1) for each in seen)
        return Validation(fitted, off, requests, measured, predicted(fitted, jobs))
    finally:
        await asking.close()


def run(requests: int, seed: int) -> Validation:
    """With an engine of its own, which is ended whatever happens."""
    command = [sys.executable, "-m", "agent.engines.torch", "--model", "demo", "--port", "0"]
    command += ["--slots", str(SLOTS), "--queue", "256", "--threads", "1", "--exit-with-parent"]
    engine = subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        cwd=Path(__file__).parents[2],
        env={**os.environ, KEY_VARIABLE: KEY},
    )
    try:
        assert engine.stdout is not None
        ready = json.loads(engine.stdout.readline() or b"{}")
        if "port" not in ready:
            raise RuntimeError("the engine did not start")
        return asyncio.run(validate(f"http://127.0.0.1:{ready['port']}", requests, seed))
    finally:
        engine.terminate()
        engine.communicate(timeout=30)


def load(arguments: argparse.Namespace) -> object:
    return run(SMALL if arguments.small else REQUESTS, arguments.seed)
