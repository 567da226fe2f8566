"""Finds the fuzzers and runs them in rounds, each from a seed of its own that reproduces it."""

import importlib
import random
import time
import traceback
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path

PREFIX = "fuzz_"
ROUND_INPUTS = 5_000
"""Inputs of one round: some seconds, so that progress shows and a failure is quick to run again."""


def names() -> tuple[str, ...]:
    """The fuzzers there are."""
    return tuple(
        sorted(path.stem.removeprefix(PREFIX) for path in Path(__file__).parent.glob(f"{PREFIX}*.py"))
    )


@dataclass(frozen=True, slots=True)
class Round:
    """What came of one round; ``failure`` is a traceback."""

    name: str
    seed: int
    inputs: int
    failure: str | None = None


def run_round(name: str, seed: int, inputs: int = ROUND_INPUTS) -> Round:
    """One round of one fuzzer, the same for the same seed."""
    module = importlib.import_module(f"tests.fuzz.{PREFIX}{name}")
    try:
        return Round(name, seed, int(module.fuzz(random.Random(seed), inputs)))
    except Exception:
        return Round(name, seed, 0, traceback.format_exc())


def run(chosen: tuple[str, ...], total: int, seconds: float, seed: int, workers: int) -> Iterator[Round]:
    """Rounds of ``chosen`` in turn until ``total`` inputs were tried or time is up; stops at a failure."""
    deadline_s = time.monotonic() + seconds
    tried = 0
    with ProcessPoolExecutor(workers) as pool:
        while tried < total and time.monotonic() < deadline_s:
            jobs = [
                pool.submit(run_round, chosen[index % len(chosen)], seed + index)
                for index in range(len(chosen) * workers)
            ]
            seed += len(jobs)
            for job in as_completed(jobs):
                done = job.result()
                tried += done.inputs
                yield done
                if done.failure is not None:
                    return
