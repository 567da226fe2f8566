"""The built-in engine beside ``transformers serve`` and plain ``generate``: the same model, prompts, lengths.

So many requests at once, each greedy and of the same number of tokens; when all are answered, once more. Each
server is asked directly over TCP on loopback, with answers in one piece. ``generate`` gets the prompts of a
batch as one tensor, in a process without a server: it is what the model itself takes, and nobody can ask it.
Every side has one thread for its computations and two rounds, the second in the opposite order, so that a
machine that becomes slower meanwhile favours nobody. CPU time is that of all processes of a server.

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
from pathlib import Path

import httpx

from shared.process.ports import free_port
from tests.bench.figures import cpu_s
from tests.bench.own_models import started
from tests.bench.peers.machine import family

_ROOT = Path(__file__).parents[2]
BATCHES = (1, 8, 32)
TOKENS = 48
PROMPT = "Once upon a time there was a machine that answered "
_TIMES = 2
"""How often each of the requests at once is sent while it is measured."""
_LIMIT_S = 600.0
"""For the whole run."""
_KEY = "bench"
SIDES = ("ours", "serve", "serve batching", "generate")


@dataclass(frozen=True, slots=True)
class GenerationFigures:
    side: str
    batch: int
    """Requests at once."""
    tokens_per_s: float
    cpu_ms: float
    """For a token."""

    def __str__(self) -> str:
        return (
            f"batch {self.batch:2d}   {self.side:15s} {self.tokens_per_s:8.1f} tokens/s   "
            f"CPU {self.cpu_ms:7.2f} ms a token"
        )


@dataclass(frozen=True, slots=True)
class GenerationComparison:
    rounds: tuple[GenerationFigures, ...]

    def to_json(self) -> str:
        return json.dumps(asdict(self), indent=1)

    def best(self, side: str, batch: int) -> float:
        """Tokens per second of the better round."""
        rounds = [each for each in self.rounds if (each.side, each.batch) == (side, batch)]
        return max((each.tokens_per_s for each in rounds), default=0.0)

    def least_cpu_ms(self, side: str, batch: int) -> float:
        """For a token, in the better round; 0: there is none."""
        rounds = [each for each in self.rounds if (each.side, each.batch) == (side, batch)]
        return min((each.cpu_ms for each in rounds), default=0.0)

    def __str__(self) -> str:
        lines = [str(each) for each in sorted(self.rounds, key=lambda each: each.batch)]
        for batch in sorted({each.batch for each in self.rounds}):
            others = [side for side in SIDES[1:] if self.best(side, batch)]
            rates = [f"{self.best('ours', batch) / self.best(side, batch):.2f} × {side}" for side in others]
            lines.append(f"batch {batch:2d}   our tokens/s are {'   '.join(rates)}")
            ours = self.least_cpu_ms("ours", batch)
            costs = [f"{ours / self.least_cpu_ms(side, batch):.2f} × {side}" for side in others]
            lines.append(f"batch {batch:2d}   our CPU for a token is {'   '.join(costs)}")
        return "\n".join(lines)


def run(
    batches: Sequence[int] = BATCHES, tokens: int = TOKENS, limit_s: float = _LIMIT_S
) -> GenerationComparison:
    """All sides, there and back, within ``limit_s``."""
    ends_s = time.monotonic() + limit_s
    order = (*SIDES, *SIDES[::-1])
    with tempfile.TemporaryDirectory(prefix="trunkline-bench-") as scratch:
        directory = Path(scratch) / "model"
        command = [sys.executable, "-P", "-m", "tests.bench.generation_model", str(directory)]
        subprocess.run(command, check=True, cwd=_ROOT, env=_environment(), capture_output=True)
        rounds: list[GenerationFigures] = []
        for place, side in enumerate(order):
            share_s = (ends_s - time.monotonic()) / (len(order) - place)
            rounds += measure(side, directory, batches, tokens, share_s)
    return GenerationComparison(tuple(rounds))


def measure(
    side: str, directory: Path, batches: Sequence[int], tokens: int, limit_s: float = _LIMIT_S
) -> list[GenerationFigures]:
    """One round of one side: of the batches that were done within ``limit_s``."""
    if side == "generate":
        return _plain(directory, batches, tokens, limit_s)
    port, found = free_port(), list[GenerationFigures]()

    async def serve(pid: int) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(limit_s):
                await _serve(side, pid, directory, port, batches, tokens, found)

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

        async def ask(number: int) -> None:
            message = {"role": "user", "content": f"{PROMPT}{number}"}
            body = {"model": str(directory), "messages": [message], "max_tokens": tokens, "temperature": 0}
            answer = await client.post("/v1/chat/completions", json=body)
            answer.raise_for_status()
            if (count := answer.json()["usage"]["completion_tokens"]) != tokens:
                raise ValueError(f"{side} answered with {count} tokens")

        async def at_once(batch: int, times: int) -> None:
            for turn in range(times):
                await asyncio.gather(*(ask(turn * batch + place) for place in range(batch)))

        for batch in batches:
            await at_once(batch, 1)
            before_s, began_s = sum(map(cpu_s, family(pid))), time.monotonic()
            await at_once(batch, _TIMES)
            took_s, cpu = time.monotonic() - began_s, sum(map(cpu_s, family(pid))) - before_s
            count = batch * tokens * _TIMES
            found.append(GenerationFigures(side, batch, count / took_s, 1000 * cpu / count))


async def _until_ready(client: httpx.AsyncClient) -> None:
    while True:
        with suppress(httpx.HTTPError):
            if (await client.get("/health")).status_code == 200:
                return
        await asyncio.sleep(0.2)


def _plain(directory: Path, batches: Sequence[int], tokens: int, limit_s: float) -> list[GenerationFigures]:
    program = [sys.executable, "-P", "-m", "tests.bench.generation_plain", str(directory)]
    numbers = [str(number) for number in (tokens, _TIMES, *batches)]
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
            "generate", row["batch"], row["tokens"] / row["s"], 1000 * row["cpu_s"] / row["tokens"]
        )
        for row in rows
    ]
