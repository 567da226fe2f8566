"""The built-in engine beside ``transformers serve`` and plain ``generate``: the same model, prompts, lengths.

So many requests at once, each greedy and of the same number of tokens; when all are answered, once more.
Before that, as many are answered that are not measured. All prompts have one length and none comes twice:
what a side keeps of earlier ones saves it no more than the words they all begin with. Each server is asked
directly over TCP on loopback, with answers in one piece. ``generate`` gets the prompts of a batch as one
tensor, in a process without a server: it is what the model itself takes, and nobody can ask it. Every side
computes in float32 with one thread, and is started anew in every round. Every second round goes in the
opposite order, and ratios are made round by round, so that a machine that becomes slower meanwhile favours
nobody. CPU time is that of all processes of a server.

The whole run is bounded: each round of a side has its share of the time that is left, and what it has not
done by then is left out of the figures.
"""

import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from itertools import count
from pathlib import Path
from statistics import median

import httpx

from shared.process.ports import free_port
from tests.bench.figures import cpu_s, ratio_of_rounds
from tests.bench.generation_requests import prompt_of, times_of
from tests.bench.own_models import started
from tests.bench.peers.machine import family

_ROOT = Path(__file__).parents[2]
BATCHES = (1, 8, 32)
TOKENS = 48
ROUNDS = 4
ROUND_S = 300.0
"""The longest a round may take, on average."""
_KEY = "bench"
SIDES = ("ours", "serve", "serve batching", "generate")


@dataclass(frozen=True, slots=True)
class GenerationFigures:
    side: str
    round: int
    batch: int
    """Requests at once."""
    tokens_per_s: float
    cpu_ms: float
    """For a token."""


@dataclass(frozen=True, slots=True)
class GenerationComparison:
    rounds: tuple[GenerationFigures, ...]
    sides: tuple[str, ...] = ()
    """Those that were to be measured."""

    def to_json(self) -> str:
        return json.dumps(asdict(self), indent=1)

    def of(self, side: str, batch: int) -> dict[int, GenerationFigures]:
        """By the number of the round; those that were done in time."""
        return {each.round: each for each in self.rounds if (each.side, each.batch) == (side, batch)}

    def __str__(self) -> str:
        lines = []
        for batch in sorted({each.batch for each in self.rounds}):
            for side in SIDES:
                if found := self.of(side, batch):
                    rate = median(each.tokens_per_s for each in found.values())
                    cpu_ms = median(each.cpu_ms for each in found.values())
                    said = f"{rate:8.1f} tokens/s   CPU {cpu_ms:7.2f} ms a token"
                    lines.append(f"batch {batch:2d}   {side:15s} {said}{self._beside(side, batch)}")
                elif side in self.sides:
                    lines.append(f"batch {batch:2d}   {side:15s} was not done in time")
        return "\n".join(lines)

    def _beside(self, side: str, batch: int) -> str:
        """Ours in ratio to that side, of the rounds that both were done in."""
        ours, theirs = self.of("ours", batch), self.of(side, batch)
        both = sorted(ours.keys() & theirs.keys())
        if side == "ours" or not both:
            return ""
        rates = [[found[number].tokens_per_s for number in both] for found in (ours, theirs)]
        costs = [[found[number].cpu_ms for number in both] for found in (ours, theirs)]
        return f"   ours: tokens/s × {ratio_of_rounds(*rates)}, CPU × {ratio_of_rounds(*costs)}"


def run(
    batches: Sequence[int] = BATCHES, tokens: int = TOKENS, rounds: int = ROUNDS, limit_s: float | None = None
) -> GenerationComparison:
    """All sides in every round, within ``limit_s``; by default a round has ``ROUND_S``."""
    ends_s = time.monotonic() + (rounds * ROUND_S if limit_s is None else limit_s)
    turns = [(number, side) for number in range(rounds) for side in (SIDES[::-1] if number % 2 else SIDES)]
    with tempfile.TemporaryDirectory(prefix="trunkline-bench-") as scratch:
        directory = Path(scratch) / "model"
        command = [sys.executable, "-P", "-m", "tests.bench.generation_model", str(directory)]
        subprocess.run(command, check=True, cwd=_ROOT, env=_environment(), capture_output=True)
        found: list[GenerationFigures] = []
        for place, (number, side) in enumerate(turns):
            share_s = (ends_s - time.monotonic()) / (len(turns) - place)
            found += measure(side, number, directory, batches, tokens, share_s)
    return GenerationComparison(tuple(found), SIDES)


def measure(
    side: str,
    number: int,
    directory: Path,
    batches: Sequence[int],
    tokens: int,
    limit_s: float = ROUND_S,
) -> list[GenerationFigures]:
    """One side in the round of that number: of the batches that were done within ``limit_s``."""
    if side == "generate":
        return _plain(number, directory, batches, tokens, limit_s)
    port, found = free_port(), list[GenerationFigures]()

    async def serve(pid: int) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(limit_s):
                await _serve(side, number, pid, directory, port, batches, tokens, found)

    with started(_command(side, directory, port, max(batches)), _environment()) as pid:
        asyncio.run(serve(pid))
    return found


def _command(side: str, directory: Path, port: int, most: int) -> tuple[str, ...]:
    python = (sys.executable, "-P", "-m")
    if side == "ours":
        slots = ("--slots", str(most), "--queue", str(most), "--threads", "1")
        model = ("--model", str(directory), "--name", str(directory), "--device", "cpu")
        return (*python, "agent.engines.torch", *model, "--port", str(port), *slots)
    where = ("--host", "127.0.0.1", "--port", str(port), "--device", "cpu")
    how = ("--continuous-batching",) if side == "serve batching" else ()
    return (*python, "transformers.cli.transformers", "serve", str(directory), *where, *how)


def _environment() -> dict[str, str]:
    threads = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
    local = {"HF_HUB_OFFLINE": "1", "TRUNKLINE_ENGINE_KEY": _KEY, "PYTHONPATH": str(_ROOT)}
    return os.environ | threads | local


async def _serve(
    side: str,
    number: int,
    pid: int,
    directory: Path,
    port: int,
    batches: Sequence[int],
    tokens: int,
    found: list[GenerationFigures],
) -> None:
    """Adds the figures of each batch to ``found``."""
    headers = {"authorization": f"Bearer {_KEY}"}
    url = f"http://127.0.0.1:{port}"
    async with httpx.AsyncClient(base_url=url, headers=headers, timeout=None, trust_env=False) as client:
        await _until_ready(client)

        numbers = count()

        async def ask() -> None:
            message = {"role": "user", "content": prompt_of(next(numbers))}
            body = {"model": str(directory), "messages": [message], "max_tokens": tokens, "temperature": 0}
            answer = await client.post("/v1/chat/completions", json=body)
            answer.raise_for_status()
            if (made := answer.json()["usage"]["completion_tokens"]) != tokens:
                raise ValueError(f"{side} answered with {made} tokens")

        async def at_once(batch: int, times: int) -> None:
            for _ in range(times):
                await asyncio.gather(*(ask() for _ in range(batch)))

        for batch in batches:
            await at_once(batch, 1)
            before_s, began_s = sum(map(cpu_s, family(pid))), time.monotonic()
            await at_once(batch, times_of(batch))
            took_s, cpu = time.monotonic() - began_s, sum(map(cpu_s, family(pid))) - before_s
            made = batch * tokens * times_of(batch)
            found.append(GenerationFigures(side, number, batch, made / took_s, 1000 * cpu / made))


async def _until_ready(client: httpx.AsyncClient) -> None:
    while True:
        with suppress(httpx.HTTPError):
            if (await client.get("/health")).status_code == 200:
                return
        await asyncio.sleep(0.2)


def _plain(
    number: int, directory: Path, batches: Sequence[int], tokens: int, limit_s: float
) -> list[GenerationFigures]:
    program = [sys.executable, "-P", "-m", "tests.bench.generation_plain", str(directory)]
    numbers = [str(each) for each in (tokens, *batches)]
    try:
        said = subprocess.run(
            [*program, *numbers],
            check=True,
            cwd=_ROOT,
            env=_environment(),
            capture_output=True,
            timeout=limit_s,
        ).stdout
    except subprocess.TimeoutExpired as late:
        said = late.stdout or b""
    rows = map(json.loads, said[: said.rfind(b"\n") + 1].splitlines())
    return [
        GenerationFigures(
            "generate", number, row["batch"], row["tokens"] / row["s"], 1000 * row["cpu_s"] / row["tokens"]
        )
        for row in rows
    ]
